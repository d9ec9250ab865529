// What the learner sees: the frames, items, or rows made from an episode, next to the steps that they come from.
import { clamp, count, html, line, number, useLoaded, useState, useStore, watchWidth } from "./lib.js";
import { Picture, mainCamera } from "./cameras.js";
import { get } from "./source.js";
import { Value } from "./values.js";

const PAGE = 20;
const MOST_ROWS = 200;
const MASKS = /(^|[/_])(mask|valid|is_pad|pad)(s|ding)?$|_mask|_is_pad/;

export function Made({ dataset, episode, player }) {
  const [offset, setOffset] = useState(0);
  const [chosen, choose] = useState(0);
  const { data, error } = useLoaded((signal) =>
    get("/api/made", { dataset: dataset.id, key: episode.key, offset, limit: PAGE }, signal), [dataset.id, episode.key, offset]);
  if (error || data?.error) return html`<p class="error"><bdi>${line(error ?? data.error, 1000)}</bdi></p>`;
  if (!data) return html`<p class="wait">Loading…</p>`;
  if (!data.items.length) return html`<p class="empty">${line(data.empty ?? "There are no more items.", 400)}</p>`;
  const turn = (by) => {
    setOffset(clamp(offset + by * PAGE, 0, Math.floor((data.total - 1) / PAGE) * PAGE));
    choose(0);
  };
  const several = data.kind === "items";
  const item = several ? data.items[clamp(chosen, 0, data.items.length - 1)] : joined(data);
  return html`<div class="made">
    <p><bdi class="mono">${line(data.about, 400)}</bdi> <span class="muted">makes ${count(data.total, data.kind.replace(/s$/, ""))} from this episode.</span>
      <span class="key"><i class="hatched"></i> padding or masked</span></p>
    ${data.note && html`<p class="muted">${line(data.note, 400)}</p>`}
    ${several && html`<${Spans} ...${{ data, item, steps: episode.steps, choose }} />`}
    ${data.total > PAGE && html`<div class="bar small"><button aria-label="Earlier" disabled=${!offset} onClick=${() => turn(-1)}>‹</button>
      ${number(offset)}–${number(offset + data.items.length - 1)} of ${number(data.total)}
      <button aria-label="Later" disabled=${offset + PAGE >= data.total} onClick=${() => turn(1)}>›</button></div>`}
    <${Item} ...${{ item, fields: data.fields, dataset, episode, player }} />
  </div>`;
}

/** Frames or rows of a page as one table: each is a row. */
function joined({ items, fields }) {
  const parts = (name) => (items.some((one) => one[name]) ? items.flatMap((one) => one[name] ?? [null]) : null);
  const values = fields.filter(({ path }) => Object.hasOwn(items[0].values, path)).map(({ path }) => [path, items.flatMap((one) => one.values[path])]);
  return { first: items[0].number, length: items.length, steps: parts("steps"), padding: parts("padding"), values: Object.fromEntries(values) };
}

function Spans({ data, item, steps, choose }) {
  const key = (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    choose((now) => clamp(now + by, 0, data.items.length - 1));
  };
  const extent = Math.max(steps, ...data.items.map((one) => stepsOf(one)[1] + 1 + (one.padding ?? []).filter(Boolean).length));
  return html`<div class="spans" role="listbox" aria-label="Items" tabindex="0" onKeyDown=${key}>${data.items.map((one, i) =>
    html`<${Span} key=${one.number} ...${{ one, extent, selected: one === item, onClick: () => choose(i) }} />`)}</div>`;
}

/** Which steps of the episode an item was made from, as a bar; padding is hatched. */
function Span({ one, extent, selected, onClick }) {
  const [low, high] = stepsOf(one);
  const padded = (one.padding ?? []).filter(Boolean).length;
  const before = (one.padding ?? []).findIndex((pad) => !pad); // padding at the start
  const scale = (n) => `${(100 * n) / extent}%`;
  const start = before > 0 ? low - before : high + 1;
  return html`<button role="option" tabindex="-1" aria-selected=${selected} class="span" onClick=${onClick}
    title=${`item ${one.number}: ${one.steps ? `steps ${low} to ${high}, ` : ""}${one.length} rows, ${padded} of padding`}>
    <small>${number(one.number)}</small><span class="track"><i style=${{ left: scale(low), width: scale(high - low + 1) }}></i>
    ${padded > 0 && html`<i class="hatched" style=${{ left: scale(Math.max(0, start)), width: scale(padded) }}></i>`}</span>
    <small class="muted">${number(one.length - padded)}${padded ? ` + ${number(padded)}` : ""}</small></button>`;
}

/** The first and last step of an item; as many steps as it has rows, if they are unknown. */
function stepsOf(one) {
  const from = (one.steps ?? []).filter((step) => step !== null);
  if (!from.length) return [0, Math.max(0, one.length - 1 - (one.padding ?? []).filter(Boolean).length)];
  return [from.reduce((a, b) => Math.min(a, b)), from.reduce((a, b) => Math.max(a, b))];
}

function Item({ item, fields, dataset, episode, player }) {
  const { step } = useStore(player);
  const camera = mainCamera(episode.cameras.filter((one) => one.kind === "image"));
  const rows = Array.from({ length: Math.min(item.length, MOST_ROWS) }, (_, i) => i);
  const shown = fields.filter((one) => Object.hasOwn(item.values, one.path));
  return html`<div class="scroll" ref=${watchWidth}><table class="item">${item.number != null && html`<caption>Item ${number(item.number)}</caption>`}
    <thead><tr><th scope="col">row</th><th scope="col">step</th>${camera && html`<th scope="col">source</th>`}
      ${shown.map((one) => html`<th scope="col" key=${one.path}><bdi>${line(one.path, 120)}</bdi><small>${line(one.dtype, 20)} ${one.shape?.length ? `[${one.shape.map((n) => n ?? "?").join(", ")}]` : ""}</small></th>`)}</tr></thead>
    <tbody>${rows.map((i) => {
      const from = item.steps?.[i] ?? null;
      const padding = Boolean(item.padding?.[i]);
      return html`<tr key=${i} class="${padding ? "hatched" : ""} ${from === step ? "now" : ""}"><th scope="row">${number(i + (item.first ?? 0))}</th>
        <td>${from === null ? html`<span class="muted">${padding ? "padding" : "–"}</span>` : html`<button class="link" onClick=${() => player.seek(from)}>${number(from)}</button>`}</td>
        ${camera && html`<td>${from !== null && html`<${Picture} dataset=${dataset.id} episode=${episode.key} camera=${camera.path} step=${from} height="48" version=${episode.version} />`}</td>`}
        ${shown.map((one) => html`<td key=${one.path} class=${masked(one, item.values[one.path][i]) ? "hatched" : ""}><${Value} value=${unwrap(item.values[one.path][i])} most=${8} /></td>`)}</tr>`;
    })}</tbody></table></div>
    ${item.length > MOST_ROWS && html`<p class="muted">and ${count(item.length - MOST_ROWS, "more row")}</p>`}`;
}

const unwrap = (value) => (value && typeof value === "object" && !Array.isArray(value) && "value" in value ? value.value : value);

/** Whether a mask says that its row does not count. */
function masked(field, value) {
  const name = field.path.toLowerCase();
  if (!MASKS.test(name)) return false;
  const set = unwrap(value);
  if (typeof set !== "boolean" && set !== 0 && set !== 1) return false;
  return /pad/.test(name) ? Boolean(set) : !set;
}
