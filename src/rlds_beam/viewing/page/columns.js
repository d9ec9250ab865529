// What the list can show of an episode, and how its cells look.
import { html, useState } from "./lib.js";
import { Film, mainCamera } from "./grid.js";
import { cell, duration, line, number, shortKey } from "./text.js";

const FIXED = [
  { name: "picture", label: "", kind: "text", group: "Episode", summary: "The first frame of a camera; it plays under the pointer", wide: 76 },
  { name: "end", label: "", kind: "text", group: "Episode", summary: "The last frame of a camera", wide: 76 },
  { name: "index", label: "#", kind: "number", group: "Episode", summary: "The number in the dataset's order", wide: 72 },
  { name: "key", label: "key", kind: "text", group: "Episode", summary: "Split, shard, and position", wide: 190 },
  { name: "split", label: "split", kind: "text", group: "Episode", wide: 84 },
  { name: "steps", label: "steps", kind: "number", group: "Episode", wide: 78 },
  { name: "duration", label: "duration", kind: "number", group: "Episode", summary: "The steps at the declared rate", wide: 92 },
  { name: "return", label: "return", kind: "number", group: "Episode", wide: 92 },
  { name: "outline", label: "action", kind: "text", group: "Episode", summary: "The part of an action that moves most, as eight means", wide: 88 },
  { name: "rule", label: "rule", kind: "text", group: "Episode", summary: "The rule that rejects it", wide: 150 },
  { name: "instruction", label: "instruction", kind: "text", group: "Episode", wide: 240, stretch: true },
  { name: "signals", label: "signals", kind: "text", group: "Episode", summary: "Signals beyond their thresholds", wide: 250 },
];

/** All columns of a dataset: {name, label, kind, group, wide, sortable, ...}. */
export function columnsOf(dataset) {
  const listed = new Map(dataset.columns.map((one) => [one.name, one]));
  const digits = number(dataset.episodes).length;
  const fixed = FIXED.map((one) => ({ ...listed.get(one.name), ...one, sortable: listed.has(one.name), ...(one.name === "index" && { wide: 40 + 9 * digits }) }));
  const known = new Set(FIXED.map((one) => one.name));
  const others = dataset.columns.filter((one) => !known.has(one.name));
  return [...fixed, ...others.map((one) => ({ ...one, sortable: true, wide: one.kind === "number" ? 132 : 160 }))];
}

/** The columns that are shown: those that fit most datasets, and those that the list is sorted or filtered by. */
export function shownColumns(dataset, { sort, filter }) {
  const all = columnsOf(dataset);
  const without = (name) => dataset.scanned && dataset.columns.length && !dataset.columns.some((one) => one.name === name);
  const own = ["index", "steps", ...["return", "rule", "instruction"].filter((name) => !without(name))];
  if (dataset.cameras.length) own.push("picture");
  if (mainCamera(dataset.cameras)?.kind === "image" && dataset.columns.length) own.push("end");
  if (dataset.fps) own.push("duration");
  if (dataset.splits.length > 1) own.push("split");
  if (dataset.signals.length) own.push("signals");
  if (dataset.outlined) own.push("outline");
  const asked = filter.split(/[\s,;<>=!]+/);
  return all.filter((one) => own.includes(one.name) || one.name === sort || asked.includes(one.name));
}

export function valueOf(row, column) {
  const { name } = column;
  if (column.group === "Episode" && Object.hasOwn(row, name)) return row[name];
  const short = name.replace(/^metadata\//, "");
  for (const values of [row.metadata, row.signals])
    for (const one of [name, short]) if (values && Object.hasOwn(values, one)) return values[one];
  return Object.hasOwn(row, name) ? row[name] : null;
}

/** Whether a signal is beyond its threshold. */
export function beyond(value, column) {
  if (typeof value !== "number" || typeof column.threshold !== "number") return false;
  return value > column.threshold;
}

export function Cell({ row, column, dataset }) {
  if (column.name === "signals") return html`<div role="gridcell" class="cell txt"><${Signals} row=${row} dataset=${dataset} /></div>`;
  if (column.name === "outline") return html`<div role="gridcell" class="cell">${row.outline?.every((one) => one !== null) && html`<${Outline} values=${row.outline} />`}</div>`;
  if (column.name === "picture" || column.name === "end") return html`<${PictureCell} row=${row} dataset=${dataset} ending=${column.name === "end"} />`;
  const value = column.name === "duration" ? dataset.fps && row.steps !== null ? duration(row.steps / dataset.fps) : null : valueOf(row, column);
  const kind = column.kind === "number" ? "num" : "txt";
  let content = html`<bdi>${cell(value)}</bdi>`;
  if (column.name === "key") content = html`<bdi>${shortKey(value)}</bdi>`;
  else if (column.name === "rule" && value) content = html`<span class="badge bad" title=${line(row.detail)}><bdi>${line(value, 60)}</bdi></span>`;
  else if (beyond(value, column)) content = html`<span class="badge warn"><bdi>${cell(value)}</bdi></span>`;
  return html`<div role="gridcell" class="cell ${kind}" title=${kind === "txt" ? line(value) : undefined}>${content}</div>`;
}

/** A few numbers as a line, from the smallest to the largest. */
function Outline({ values }) {
  const low = Math.min(...values), span = Math.max(...values) - low || 1;
  const points = values.map((value, i) => `${(70 * i) / (values.length - 1)},${(19 - (18 * (value - low)) / span).toFixed(1)}`);
  return html`<svg class="outline" viewBox="0 0 70 20" aria-hidden="true"><polyline points=${points.join(" ")} /></svg>`;
}

/** The first frame of an episode, or its last one if `ending`; it plays under the pointer. */
export function PictureCell({ row, dataset, ending = false }) {
  const [pointed, point] = useState(false);
  const camera = mainCamera(dataset.cameras);
  return html`<div role="gridcell" class="cell film" onMouseEnter=${() => point(true)} onMouseLeave=${() => point(false)}>
    ${camera && html`<${Film} key=${row.key} dataset=${dataset.id} row=${row} camera=${camera} height="96" moving=${pointed} ending=${ending} />`}</div>`;
}

const MOST_BADGES = 3;

/** The signals of an episode that are beyond their thresholds. */
function Signals({ row, dataset }) {
  const found = dataset.columns.filter((one) => !one.name.includes("/") && beyond(row.signals?.[one.name], one));
  return html`<span class="badges">${found.slice(0, MOST_BADGES).map((one) => html`<span key=${one.name} class="badge warn"
    title=${`${one.name}: ${cell(row.signals[one.name])}. ${line(one.summary ?? "")}`}>${one.label}</span>`)}
    ${found.length > MOST_BADGES && html`<span class="muted small">+${found.length - MOST_BADGES}</span>`}</span>`;
}
