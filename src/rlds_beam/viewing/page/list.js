// The episode list, sorted and filtered by the server.
import { cell, clamp, count, duration, html, line, number, shortKey, useCallback, useEffect, useKeys, useMedia, useRef, useState, useStore } from "./lib.js";
import { Film, mainCamera } from "./cameras.js";
import { FlagButton, flagsOf } from "./dialogs.js";
import { Virtual, rowsOf } from "./rows.js";
import { route } from "./source.js";

const NOTHING = { filter: "", text: "", split: "", rule: "" };

export function ListPage({ state, dataset }) {
  const rows = useStore(rowsOf(state, dataset.id));
  const flags = useStore(flagsOf(dataset));
  const narrow = useMedia("(max-width: 640px)");
  const [current, setCurrent] = useState(() => Number(state.at) || 0);
  const cursor = useRef(current); // a second key before the next drawing moves on from the first
  const range = useRef([0, 0]);
  const control = useRef(null);
  const total = rows.total ?? 0;
  const listed = rows.total !== null; // before, keys move all the same, and Enter waits for its row

  const onRange = useCallback((first, stop) => {
    range.current = [first, stop];
    const timer = setTimeout(() => rows.want(first, stop), 60); // not for each row that flies past
    return () => clearTimeout(timer);
  }, [rows]);
  useEffect(() => rows.refresh(...range.current), [dataset.scan.done, dataset.scan.state]);
  const select = (position) => setCurrent(cursor.current = position);
  useEffect(() => {
    if (total && cursor.current >= total) select(total - 1);
  }, [total]);
  const revealed = useRef(false); // where the list was left; another order begins at the top
  useEffect(() => {
    if (!listed || revealed.current) return;
    revealed.current = true;
    if (cursor.current) control.current?.reveal(cursor.current, true);
  }, [listed]);

  const open = async (position) => {
    const row = rows.at(position) ?? await rows.row(position);
    if (row && cursor.current === position) route.go({ episode: row.key, at: String(position), t: "" });
  };
  const move = (by) => {
    const next = clamp(cursor.current + by, 0, listed ? Math.max(0, total - 1) : Infinity);
    select(next);
    control.current?.reveal(next);
  };
  useKeys((event) => {
    const page = control.current?.page ?? 10;
    const moves = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page, Home: -total, End: total };
    const row = rows.at(cursor.current);
    if (event.key === "Enter" || event.key === " ") {
      if (event.target.closest?.("button, a")) return false;
      open(cursor.current);
    } else if (Object.hasOwn(moves, event.key)) move(moves[event.key]);
    else if (event.key === "f" && row) flags.toggle(row.key);
    else if (event.key === "/") document.querySelector("#search")?.focus();
    else return false;
    return true;
  });

  const columns = shownColumns(dataset, state);
  const wide = columns.reduce((sum, one) => sum + one.wide, 40);
  const template = `40px ${columns.map((one) => (one.stretch ? `minmax(${one.wide}px, 1fr)` : `${one.wide}px`)).join(" ")}`;
  const render = (position, style) => {
    const row = rows.at(position);
    const props = { key: row?.key ?? position, position, row, style, dataset, current, flags, open, select };
    return narrow ? html`<${NarrowRow} ...${props} />` : html`<${Row} ...${props} columns=${columns} template=${template} wide=${wide} />`;
  };
  return html`<main class="list">
    <${Toolbar} ...${{ state, dataset, rows }} />
    ${rows.error && html`<p class="error" role="alert"><bdi>${line(rows.error, 1000)}</bdi></p>`}
    ${dataset.problems.map((one) => html`<p class="error"><bdi>${line(one, 500)}</bdi></p>`)}
    ${rows.total === 0 && html`<p class="empty">No episode matches. <button class="link" onClick=${() => route.go(NOTHING)}>Show all episodes</button></p>`}
    <${Virtual} label="Episodes" role="grid" tabindex="0" aria-rowcount=${total + 1} aria-activedescendant=${`row-${current}`}
      rows=${total} height=${narrow ? 58 : dataset.cameras.length ? 52 : 32} render=${render} onRange=${onRange} control=${control}
      head=${!narrow && html`<${Head} columns=${columns} state=${state} template=${template} wide=${wide} />`} />
  </main>`;
}

function Toolbar({ state, dataset, rows }) {
  const rules = Object.entries(dataset.rules);
  const rejected = rules.reduce((sum, [, n]) => sum + n, 0);
  const filtered = Object.keys(NOTHING).some((name) => state[name]);
  const pick = (name) => (event) => route.go({ [name]: event.target.value, at: "" });
  return html`<div class="bar toolbar" role="search">
    <${Box} id="search" label="Search instructions" name="text" state=${state} wait=${250} />
    <${Box} id="filter" label="Filter: steps < 20 and return >= 0" name="filter" state=${state} wait=${600} list="names" class="mono" />
    <datalist id="names">${columnsOf(dataset).filter((one) => one.sortable && one.kind === "number").slice(0, 300).map((one) =>
      html`<option value=${`${one.name} > ${one.threshold ?? ""}`}>${line(one.summary ?? "", 100)}</option>`)}</datalist>
    ${dataset.splits.length > 1 && html`<select aria-label="Split" value=${state.split} onChange=${pick("split")}>
      <option value="">All splits</option>${dataset.splits.map((one) => html`<option value=${one.name}>${line(one.name, 60)}</option>`)}</select>`}
    <select aria-label="Rules" value=${state.rule} onChange=${pick("rule")}>
      <option value="">Accepted and rejected</option><option value="accepted">Accepted</option>
      <option value="rejected">Rejected${rejected ? ` (${number(rejected)})` : ""}</option>
      ${rules.map(([name, n]) => html`<option value=${name}>${line(name, 60)} (${number(n)})</option>`)}</select>
    ${dataset.columns.length > 0 && html`<${SortSelect} state=${state} dataset=${dataset} />`}
    <span class="push"></span>
    <span class="muted" role="status">${rows.total === null ? "…" : filtered
      ? `${number(rows.total)} of ${count(dataset.episodes, "episode")}` : count(rows.total, "episode")}</span>
  </div>`;
}

/** A text box that changes the address when the typing pauses. */
function Box({ id, label, name, state, wait, ...rest }) {
  const timer = useRef(0);
  const box = useRef(null);
  const apply = (value) => {
    clearTimeout(timer.current);
    route.go({ [name]: value, at: "" }, true);
  };
  useEffect(() => {
    if (box.current !== document.activeElement) box.current.value = state[name];
  }, [state[name]]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return html`<input id=${id} ref=${box} type="search" placeholder=${label} aria-label=${label} maxlength="1000" autocomplete="off"
    spellcheck="false" ...${rest} onInput=${(event) => {
      const { value } = event.target;
      clearTimeout(timer.current);
      timer.current = setTimeout(() => apply(value), wait);
    }} onKeyDown=${(event) => {
      if (event.key === "Enter") apply(event.target.value);
      if (event.key === "Escape" || event.key === "ArrowDown" && !rest.list) document.querySelector(".virtual")?.focus();
    }} />`;
}

function SortSelect({ state, dataset }) {
  const columns = columnsOf(dataset).filter((one) => one.sortable);
  const value = state.sort && `${state.desc}:${state.sort}`;
  const pick = (event) => {
    const [, desc, sort] = event.target.value.match(/^(1?):(.*)$/s) ?? ["", "", ""];
    route.go({ sort, desc, at: "" });
  };
  return html`<select aria-label="Sort" value=${value} onChange=${pick}><option value="">Dataset's order</option>
    ${columns.flatMap((one) => [["1", "↓"], ["", "↑"]].map(([desc, arrow]) =>
      html`<option value=${`${desc}:${one.name}`}>${line(one.label, 40)} ${arrow}</option>`))}</select>`;
}

function Head({ columns, state, template, wide }) {
  /** The largest numbers and the first texts first, then the other order, then that of the dataset. */
  const sortBy = (column) => {
    const first = column.kind === "number" ? "1" : "";
    if (state.sort !== column.name) route.go({ sort: column.name, desc: first, at: "" });
    else if (state.desc === first) route.go({ desc: first ? "" : "1", at: "" });
    else route.go({ sort: "", desc: "", at: "" });
  };
  return html`<div class="row head" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template, minWidth: `${wide}px` }}>
    <div role="columnheader" class="cell" aria-label="Flag"></div>
    ${columns.map((one) => {
      const sorted = state.sort === one.name ? (state.desc ? "descending" : "ascending") : undefined;
      const label = html`<bdi>${line(one.label, 60)}</bdi>`;
      return html`<div role="columnheader" aria-sort=${sorted} class="cell ${one.kind === "number" ? "num" : "txt"}" title=${line(one.summary ?? one.name)}>
        ${one.sortable ? html`<button class="sort" onClick=${() => sortBy(one)}>${label}
          <span aria-hidden="true">${{ ascending: " ↑", descending: " ↓" }[sorted] ?? ""}</span></button>` : label}</div>`;
    })}
  </div>`;
}

const rowProps = ({ position, current, open, select }) => ({
  role: "row", id: `row-${position}`, "aria-rowindex": position + 2, "aria-selected": position === current,
  onClick: (event) => {
    select(position);
    if (!event.target.closest("button")) open(position);
  },
});

function Row(props) {
  const { row, columns, template, wide, style, flags, dataset } = props;
  return html`<div class="row ${row ? "" : "waiting"}" ...${rowProps(props)} style=${{ ...style, gridTemplateColumns: template, minWidth: `${wide}px` }}>
    <div role="gridcell" class="cell">${row && html`<${FlagButton} flags=${flags} row=${row} />`}</div>
    ${columns.map((one) => (row ? html`<${Cell} key=${one.name} row=${row} column=${one} dataset=${dataset} />`
      : html`<div role="gridcell" class="cell ${one.kind === "number" ? "num" : "txt"}">${one.name === "index" ? number(props.position) : html`<i class="bone"></i>`}</div>`))}
  </div>`;
}

/** A row of a phone: picture, instruction, and beneath them the numbers. */
function NarrowRow(props) {
  const { row, style, flags, position, dataset } = props;
  return html`<div class="row narrow ${row ? "" : "waiting"} ${dataset.cameras.length ? "pictured" : ""}" ...${rowProps(props)} style=${style}>
    <div role="gridcell">${row && html`<${FlagButton} flags=${flags} row=${row} />`}</div>
    ${dataset.cameras.length > 0 && (row ? html`<${PictureCell} row=${row} dataset=${dataset} />` : html`<div role="gridcell" class="cell film"></div>`)}
    <div role="gridcell" class="lines">${!row ? html`<i class="bone"></i>` : html`
      <div class="clip"><bdi>${row.instruction ? line(row.instruction) : `episode ${number(row.index)}`}</bdi></div>
      <div class="clip muted small">#${number(row.index ?? position)}${row.steps !== null && ` · ${count(row.steps, "step")}`}
        ${row.return !== null && html` · return ${cell(row.return)}`} ${row.rule && html`<span class="badge bad"><bdi>${line(row.rule, 60)}</bdi></span>`}</div>`}
    </div>
  </div>`;
}

const FIXED = [
  { name: "picture", label: "", kind: "text", summary: "The first frame of a camera; it plays under the pointer", wide: 76 },
  { name: "end", label: "", kind: "text", summary: "The last frame of a camera", wide: 76 },
  { name: "index", label: "#", kind: "number", summary: "The number in the dataset's order", wide: 72 },
  { name: "key", label: "key", kind: "text", summary: "Split, shard, and position", wide: 190 },
  { name: "split", label: "split", kind: "text", wide: 84 },
  { name: "steps", label: "steps", kind: "number", wide: 78 },
  { name: "duration", label: "duration", kind: "number", summary: "The steps at the declared rate", wide: 92 },
  { name: "return", label: "return", kind: "number", wide: 92 },
  { name: "outline", label: "action", kind: "text", summary: "The part of an action that moves most, at eight steps", wide: 88 },
  { name: "rule", label: "rule", kind: "text", summary: "The rule that rejects it", wide: 150 },
  { name: "instruction", label: "instruction", kind: "text", wide: 240, stretch: true },
  { name: "signals", label: "signals", kind: "text", summary: "Signals beyond their thresholds", wide: 250 },
];

/** All columns of a dataset: {name, label, kind, wide, sortable, ...}. */
function columnsOf(dataset) {
  const listed = new Map(dataset.columns.map((one) => [one.name, one]));
  const fixed = FIXED.map((one) => ({ ...listed.get(one.name), ...one, sortable: listed.has(one.name) }));
  fixed.find((one) => one.name === "index").wide = 40 + 9 * number(dataset.episodes).length;
  const known = new Set(FIXED.map((one) => one.name));
  const others = dataset.columns.filter((one) => !known.has(one.name));
  return [...fixed, ...others.map((one) => ({ ...one, sortable: true, wide: one.kind === "number" ? 132 : 160 }))];
}

/** The columns that are shown: those that fit most datasets, and those that the list is sorted or filtered by. */
function shownColumns(dataset, { sort, filter }) {
  const without = (name) => dataset.scanned && dataset.columns.length && !dataset.columns.some((one) => one.name === name);
  const own = ["index", "steps", ...["return", "rule", "instruction"].filter((name) => !without(name))];
  if (dataset.cameras.length) own.push("picture");
  if (mainCamera(dataset.cameras)?.kind === "image" && dataset.columns.length) own.push("end");
  if (dataset.fps) own.push("duration");
  if (dataset.splits.length > 1) own.push("split");
  if (dataset.signals.length) own.push("signals");
  if (dataset.outlined) own.push("outline");
  const asked = filter.split(/[\s,;<>=!]+/);
  return columnsOf(dataset).filter((one) => own.includes(one.name) || one.name === sort || asked.includes(one.name));
}

function Cell({ row, column, dataset }) {
  const { name, kind, threshold } = column;
  if (name === "signals") return html`<div role="gridcell" class="cell txt"><${Signals} row=${row} dataset=${dataset} /></div>`;
  if (name === "outline") return html`<div role="gridcell" class="cell">${row.outline?.every((one) => one !== null) && html`<${Outline} values=${row.outline} />`}</div>`;
  if (name === "picture" || name === "end") return html`<${PictureCell} row=${row} dataset=${dataset} ending=${name === "end"} />`;
  let value = Object.hasOwn(row, name) ? row[name] : row.metadata[name.replace(/^metadata\//, "")] ?? row.signals[name];
  if (name === "duration") value = dataset.fps && row.steps !== null ? duration(row.steps / dataset.fps) : null;
  let content = html`<bdi>${cell(value)}</bdi>`;
  if (name === "key") content = html`<bdi>${shortKey(value)}</bdi>`;
  else if (name === "rule" && value) content = html`<span class="badge bad" title=${line(row.detail)}><bdi>${line(value, 60)}</bdi></span>`;
  else if (isBeyond(value, threshold)) content = html`<span class="badge warn"><bdi>${cell(value)}</bdi></span>`;
  return html`<div role="gridcell" class="cell ${kind === "number" ? "num" : "txt"}" title=${kind === "number" ? undefined : line(value)}>${content}</div>`;
}

const isBeyond = (value, threshold) => typeof value === "number" && typeof threshold === "number" && value > threshold;

/** A few numbers as a line, from the smallest to the largest. */
function Outline({ values }) {
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((value, i) => `${(70 * i) / (values.length - 1)},${(19 - (18 * (value - low)) / span).toFixed(1)}`);
  return html`<svg class="outline" viewBox="0 0 70 20" aria-hidden="true"><polyline points=${points.join(" ")} /></svg>`;
}

/** The first frame of an episode, or its last one if `ending`; it plays under the pointer. */
function PictureCell({ row, dataset, ending = false }) {
  const [pointed, point] = useState(false);
  const camera = mainCamera(dataset.cameras);
  return html`<div role="gridcell" class="cell film" onMouseEnter=${() => point(true)} onMouseLeave=${() => point(false)}>
    ${camera && html`<${Film} key=${row.key} dataset=${dataset.id} row=${row} camera=${camera} moving=${pointed} ending=${ending} />`}</div>`;
}

const MOST_BADGES = 3;

/** The signals of an episode that are beyond their thresholds. */
function Signals({ row, dataset }) {
  const found = dataset.columns.filter((one) => !one.name.includes("/") && isBeyond(row.signals?.[one.name], one.threshold));
  return html`<span class="badges">${found.slice(0, MOST_BADGES).map((one) => html`<span key=${one.name} class="badge warn"
    title=${`${one.name}: ${cell(row.signals[one.name])}. ${line(one.summary ?? "")}`}>${one.label}</span>`)}
    ${found.length > MOST_BADGES && html`<span class="muted small">+${found.length - MOST_BADGES}</span>`}</span>`;
}
