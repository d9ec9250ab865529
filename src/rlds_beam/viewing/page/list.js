// The episode list: rows or a grid of first frames, sorted and filtered by the server.
import { html, useCallback, useEffect, useLoaded, useRef, useState, useStore, useKeys, useMedia, clamp } from "./lib.js";
import { Cell, PictureCell, columnsOf, shownColumns } from "./columns.js";
import { FlagButton, flagsOf } from "./flags.js";
import { Tile, tilesOf } from "./grid.js";
import { route } from "./route.js";
import { rowsOf } from "./rows.js";
import { get } from "./source.js";
import { cell, count, line, number } from "./text.js";
import { Virtual } from "./virtual.js";

export function ListPage({ state, dataset }) {
  const rows = useStore(rowsOf(state, dataset.id));
  const flags = useStore(flagsOf(dataset));
  const narrow = useMedia("(max-width: 640px)");
  const [current, setCurrent] = useState(() => Number(state.at) || 0);
  const cursor = useRef(current); // a second key before the next drawing moves on from the first
  const [width, setWidth] = useState(innerWidth);
  const range = useRef([0, 0]);
  const control = useRef(null);
  const total = rows.total ?? 0;
  const grid = state.view !== "" && dataset.cameras.length > 0;
  const tiles = tilesOf(width, grid);

  const onRange = useCallback((first, stop) => {
    range.current = [first * tiles.across, stop * tiles.across];
    const timer = setTimeout(() => rows.want(...range.current), 60); // not for each row that flies past
    return () => clearTimeout(timer);
  }, [rows, tiles.across]);
  useEffect(() => rows.refresh(...range.current), [dataset.scan.done, dataset.scan.state]);
  useEffect(() => {
    const measure = () => setWidth(innerWidth);
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  }, []);
  const select = (position) => setCurrent(cursor.current = position);
  const listed = rows.total !== null; // before, keys move all the same, and Enter waits for its row
  useEffect(() => {
    if (total && cursor.current >= total) select(total - 1);
  }, [total]);
  const revealed = useRef(false);
  useEffect(() => {
    if (!listed || revealed.current) return;
    revealed.current = true;
    if (cursor.current) control.current?.reveal(Math.floor(cursor.current / tiles.across), true);
  }, [listed]);

  const open = async (position) => {
    const row = rows.at(position) ?? await rows.row(position);
    if (row && cursor.current === position) route.go({ episode: row.key, at: String(position), t: "" });
  };
  const move = (position) => {
    const next = clamp(position, 0, listed ? Math.max(0, total - 1) : Infinity);
    select(next);
    control.current?.reveal(Math.floor(next / tiles.across));
  };
  useKeys((event) => listKey(event, { current: cursor.current, total, move, open, grid, across: tiles.across, page: control.current?.page ?? 10, flags, rows }));

  const columns = shownColumns(dataset, state);
  const wide = columns.reduce((sum, one) => sum + one.wide, 40);
  const template = `40px ${columns.map((one) => (one.stretch ? `minmax(${one.wide}px, 1fr)` : `${one.wide}px`)).join(" ")}`;
  const common = { dataset, current, flags, open, select };
  const render = (position, style) => {
    if (grid) return html`<div class="tiles" role="row" aria-rowindex=${position + 2} key=${position} style=${{ ...style, gridTemplateColumns: `repeat(${tiles.across}, minmax(0, 1fr))` }}>
      ${Array.from({ length: tiles.across }, (_, i) => position * tiles.across + i).filter((i) => i < total).map((i) =>
        html`<${Tile} key=${i} position=${i} row=${rows.at(i)} ending=${state.view === "last"} ...${common} />`)}</div>`;
    const row = rows.at(position);
    const props = { key: row?.key ?? position, position, row, style, ...common };
    return narrow ? html`<${NarrowRow} ...${props} />` : html`<${Row} ...${props} columns=${columns} template=${template} wide=${wide} />`;
  };
  const head = !grid && !narrow && html`<${Head} columns=${columns} state=${state} template=${template} wide=${wide} />`;
  return html`<main class="list">
    <${Toolbar} ...${{ state, dataset, rows, grid }} />
    ${rows.error && html`<p class="error" role="alert"><bdi>${line(rows.error, 1000)}</bdi></p>`}
    ${dataset.problems.map((one) => html`<p class="error"><bdi>${line(one, 500)}</bdi></p>`)}
    <${Spread} ...${{ state, dataset, rows }} />
    ${rows.total === 0 && html`<p class="empty">No episode matches. <button class="link" onClick=${() => route.go(NOTHING)}>Show all episodes</button></p>`}
    <${Virtual} label="Episodes" role="grid" tabindex="0" aria-rowcount=${total + 1} aria-activedescendant=${`row-${current}`}
      rows=${grid ? Math.ceil(total / tiles.across) : total} height=${grid ? tiles.height : narrow ? 58 : columns.some((one) => one.name === "picture") ? 52 : 32}
      head=${head} render=${render} onRange=${onRange} control=${control} />
  </main>`;
}

const NOTHING = { filter: "", text: "", split: "", rule: "" };

function listKey(event, { current, total, move, open, grid, across, page, flags, rows }) {
  if (event.key === "Enter" || event.key === " ") {
    if (event.target.closest?.("button, a")) return false;
    open(current);
    return true;
  }
  const moves = {
    ArrowDown: across, j: across, ArrowUp: -across, k: -across, PageDown: page * across, PageUp: -page * across,
    Home: -total, End: total, ...(grid && { ArrowRight: 1, ArrowLeft: -1, l: 1, h: -1 }),
  };
  if (Object.hasOwn(moves, event.key)) move(current + moves[event.key]);
  else if (event.key === "g") route.go({ view: grid ? "" : "grid" }, true);
  else if (event.key === "f" && rows.at(current)) flags.toggle(rows.at(current).key);
  else if (event.key === "/") document.querySelector("#search")?.focus();
  else return false;
  return true;
}

function Toolbar({ state, dataset, rows, grid }) {
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
    ${grid && html`<button aria-pressed=${state.view === "last"} title="How the episodes end" onClick=${() => route.go({ view: state.view === "last" ? "grid" : "last" }, true)}>Last frames</button>`}
    ${dataset.cameras.length > 0 && html`<button aria-pressed=${grid} title="g" onClick=${() => route.go({ view: grid ? "" : "grid" })}>Grid</button>`}
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

const sortBy = (column, state) =>
  route.go(state.sort !== column.name ? { sort: column.name, desc: column.kind === "number" ? "1" : "", at: "" }
    : state.desc === (column.kind === "number" ? "1" : "") ? { desc: state.desc ? "" : "1", at: "" } : { sort: "", desc: "", at: "" });

/** A histogram of the column that the list is sorted by, for the episodes listed; a click keeps those of a bar. */
function Spread({ state, dataset, rows }) {
  const column = dataset.columns.find((one) => one.name === state.sort && one.kind === "number");
  const { data } = useLoaded(async (signal) => (column ? get("/api/histogram", { ...rows.query, column: column.name }, signal) : null),
    [column?.name, JSON.stringify(rows.query), dataset.scan.state]);
  if (!column || !data?.counts.length) return null;
  const { counts, edges } = data, most = Math.max(...counts), exact = (value) => String(Number(value.toPrecision(12)));
  const whole = edges[0] % 1 && edges[1] - edges[0] === 1; // a bar for each whole number
  const [low, high] = whole ? [edges[0] + 0.5, edges.at(-1) - 0.5] : [edges[0], edges.at(-1)];
  const keep = (i) => {
    const last = i === counts.length - 1;
    const wanted = whole ? `${column.name} == ${edges[i] + 0.5}` : `${column.name} >= ${exact(edges[i])} and ${column.name} ${last ? "<=" : "<"} ${exact(edges[i + 1])}`;
    route.go({ filter: state.filter ? `${state.filter} and ${wanted}` : wanted, at: "" });
  };
  return html`<figure class="spread"><figcaption class="ends"><span>${cell(low)}</span>
      <span>${line(column.label, 60)}${column.unit ? html` <span>(${line(column.unit, 60)})</span>` : ""}: click a bar to keep its episodes</span><span>${cell(high)}</span></figcaption>
    <div class="bins">${counts.map((n, i) => [n, i, `${count(n, "episode")} ${whole ? `with ${cell(edges[i] + 0.5)}` : `from ${cell(edges[i])} to ${cell(edges[i + 1])}`}`]).map(([n, i, said]) => html`<button type="button" key=${i} tabindex="-1" disabled=${!n} onClick=${() => keep(i)}
      aria-label=${said} title=${said}>
      <i style=${{ height: `${n && Math.max(4, (100 * n) / most)}%` }}></i></button>`)}</div></figure>`;
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
  return html`<div class="row head" role="row" aria-rowindex="1" style=${{ gridTemplateColumns: template, minWidth: `${wide}px` }}>
    <div role="columnheader" class="cell" aria-label="Flag"></div>
    ${columns.map((one) => {
      const sorted = state.sort === one.name ? (state.desc ? "descending" : "ascending") : undefined;
      return html`<div role="columnheader" aria-sort=${sorted} class="cell ${one.kind === "number" ? "num" : "txt"}" title=${line(one.summary ?? one.name)}>
        ${one.sortable ? html`<button class="sort" onClick=${() => sortBy(one, state)}><bdi>${line(one.label ?? one.name, 60)}</bdi>
          <span aria-hidden="true">${{ ascending: " ↑", descending: " ↓" }[sorted] ?? ""}</span></button>` : html`<bdi>${line(one.label ?? one.name, 60)}</bdi>`}</div>`;
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
