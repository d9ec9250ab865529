// Text and numbers for people. Text of a dataset may contain anything: it is shown isolated, with control characters visible.
import { html, useState } from "./lib.js";

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const MARKS = /(\p{M}{3})\p{M}+/gu;

/** Text without characters that hide, reorder, or stack. */
export function clean(text) {
  return String(text)
    .replace(UNSEEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`)
    .replace(MARKS, "$1");
}

/** Text of a dataset. Long text is cut, with a button that shows the rest. */
export function Text({ value, most = 600 }) {
  const [all, showAll] = useState(false);
  const text = String(value ?? "");
  if (text.length <= most || all) return html`<bdi class="text">${clean(text)}</bdi>`;
  return html`<bdi class="text">${clean(text.slice(0, most))}…</bdi>${" "}
    <button class="link" onClick=${() => showAll(true)}>show all ${number(text.length)} characters</button>`;
}

/** Text on one line: white space collapsed, at most `most` characters. */
export const line = (value, most = 300) => {
  const text = String(value ?? "").slice(0, most + 1).replace(/\s+/g, " ");
  return clean(text.length > most ? `${text.slice(0, most)}…` : text);
};

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return line(value, 60);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace("e+", "e");
  return String(Number(value.toPrecision(digits)));
}

/** "1 step", "2 steps". */
export const count = (n, one, many = `${one}s`) => `${number(n)} ${n === 1 ? one : many}`;

/** A cell of the list: numbers, text, truth values, lists. */
export const cell = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  if (typeof value === "object") return line(JSON.stringify(value), 100);
  return line(value, 200);
};

/** "4.80 s", "2:05.00". */
export function seconds(value) {
  const minutes = Math.floor(value / 60);
  return minutes ? `${minutes}:${(value - 60 * minutes).toFixed(2).padStart(5, "0")}` : `${value.toFixed(2)} s`;
}

/** "4.8 s", "2 min 05 s", "1 h 12 min". */
export function duration(value) {
  if (value < 60) return `${Number(value.toPrecision(2))} s`;
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  return value < 3600 ? `${Math.floor(value / 60)} min ${two(value % 60)} s` : `${number(Math.floor(value / 3600))} h ${two((value % 3600) / 60)} min`;
}

export function bytes(n) {
  if (n < 1000) return `${n} B`;
  const power = Math.min(4, Math.floor(Math.log10(n) / 3));
  return `${(n / 1000 ** power).toFixed(1)} ${["", "KB", "MB", "GB", "TB"][power]}`;
}

/** A share: what is not zero is never shown as 0 %, what is not all never as 100 %. */
export function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  if (share > 0 && share < 0.1) return "< 0.1 %";
  if (share > 99.9 && share < 100) return "> 99.9 %";
  return `${Number(share.toFixed(1))} %`;
}

/** What an episode is called in the list: its shard and position, without the dataset's name. */
export function shortKey(key) {
  const parts = String(key).split(":");
  return line(parts.length > 2 ? parts.slice(-2).join(":") : key, 80);
}

/** A word for a POSIX shell. */
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
