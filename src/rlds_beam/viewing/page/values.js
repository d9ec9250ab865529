// Raw values: of the current step, of the metadata, and texts that change during the episode.
import { Text, bytes, clean, html, line, number, useEffect, useState, useStore } from "./lib.js";
import { get } from "./source.js";

const PAUSE = 120; // milliseconds between requests while playing

/** Numbers of nested lists with few digits. */
const short = (_, value) => (typeof value === "number" && !Number.isInteger(value) ? Number(value.toPrecision(5)) : value);

/** A value of any field: a number, text, list, or what is known of an image. */
export function Value({ value, labels, most = Infinity }) {
  if (value === null || value === undefined) return html`<span class="muted">none</span>`;
  if (typeof value === "number" || typeof value === "boolean") return html`<span class="mono">${typeof value === "number" ? number(value, 8) : String(value)}</span>`;
  if (typeof value === "string") return html`<${Text} value=${value} />`;
  if (!Array.isArray(value)) {
    if ("image" in value) return html`<span class="muted">${line(value.image, 20).toUpperCase()} image${value.bytes ? `, ${bytes(value.bytes)}` : ""}</span>`;
    return html`<code class="block"><bdi>${clean(JSON.stringify(value, null, 1).slice(0, 4000))}</bdi></code>`;
  }
  if (value.every((one) => typeof one !== "object" || one === null))
    return html`<span class="vector">${value.slice(0, most).map((one, i) => html`<span key=${i} title=${labels?.[i] ? line(labels[i]) : i}>${labels?.[i] && html`<i><bdi>${line(labels[i], 24)}</bdi></i>`}
      <bdi class="mono">${typeof one === "number" ? number(one, 5) : line(one, 100)}</bdi></span>`)}${value.length > most && html`<span class="muted">and ${value.length - most} more</span>`}</span>`;
  return html`<code class="block"><bdi>${clean(value.slice(0, 200).map((one) => JSON.stringify(one, short)).join("\n").slice(0, 8000))}</bdi></code>`;
}

export function StepValues({ dataset, episode, player }) {
  const { step } = useStore(player);
  const [shown, show] = useState(null);
  const [error, fail] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    const timer = setTimeout(() => {
      get("/api/step", { dataset: dataset.id, key: episode.key, step }, controller.signal).then(
        (answer) => { show(answer); fail(null); }, (one) => controller.signal.aborted || fail(one.message));
    }, shown && player.playing ? PAUSE : 0);
    return () => {
      clearTimeout(timer);
      if (!player.playing) controller.abort();
    };
  }, [step, episode.key]);
  if (error) return html`<p class="error"><bdi>${line(error, 500)}</bdi></p>`;
  if (!shown) return html`<p class="wait">Loading…</p>`;
  const labels = new Map(episode.curves.map((one) => [one.path, one.labels]));
  return html`<table class="values"><caption>Step ${number(shown.step)}${shown.values.some((one) => one.dtype) ? ", as stored" : ""}</caption><tbody>${shown.values.map((one) => html`<tr key=${one.path}>
    <th scope="row"><bdi>${line(one.path, 160)}</bdi><small>${line(one.dtype ?? "", 30)}${one.shape?.length ? ` [${one.shape.map((n) => n ?? "?").join(", ")}]` : ""}</small></th>
    <td><${Value} value=${one.value} labels=${Array.isArray(one.value) && labels.get(one.path)?.length === one.value.length && one.value.length > 1 ? labels.get(one.path) : null} />
      ${one.cut && html` <span class="muted small">cut</span>`}</td></tr>`)}</tbody></table>`;
}

export function Metadata({ dataset, episode }) {
  const entries = Object.entries(episode.metadata);
  return html`<table class="values"><caption>Metadata of the episode</caption><tbody>
    ${[["key", episode.key], ["split", episode.split], ["dataset", dataset.path], ["format", dataset.format], ...entries].map(([path, value], i) => html`<tr key=${i}>
      <th scope="row"><bdi>${line(path, 160)}</bdi></th><td><${Value} value=${value} /></td></tr>`)}</tbody></table>`;
}

/** Text fields of the steps, at the current step. The instruction is shown above already. */
export function StepTexts({ texts, player, instruction }) {
  const { step } = useStore(player);
  const shown = texts.map(({ path, runs }) => [path, runs.findLast((run) => run[0] <= step)?.[1], runs.length])
    .filter(([, text, runs]) => text && !(runs === 1 && text === instruction));
  if (!shown.length) return null;
  return html`<dl class="texts">${shown.map(([path, text]) => html`<div key=${path}><dt><bdi>${line(path, 120)}</bdi></dt><dd><${Text} value=${text} most=${300} /></dd></div>`)}</dl>`;
}
