// Preact's names, hooks that several parts of the page use, and text and numbers for people. Text of a dataset may contain anything: it is
// shown isolated, with control characters visible.
import { html, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./preact-htm.module.js";

export {
  h, html, render, createContext, useState, useReducer, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext,
} from "./preact-htm.module.js";

/** Something that components can follow: `emit` tells all of them. */
export class Store {
  #listeners = new Set();

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  emit() {
    for (const listener of [...this.#listeners]) listener();
  }
}

/** Renders the component again when the store changes. */
export function useStore(store) {
  const [, again] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    again();
    return store.subscribe(again);
  }, [store]);
  return store;
}

/** The answer of `load(signal)`: {data, error, loading}. Cancelled and loaded again if the inputs change. */
export function useLoaded(load, inputs) {
  const [state, set] = useState({ data: null, error: null, loading: true });
  useEffect(() => {
    const controller = new AbortController();
    set((before) => ({ ...before, loading: true }));
    load(controller.signal).then(
      (data) => set({ data, error: null, loading: false }),
      (error) => controller.signal.aborted || set({ data: null, error: error.message, loading: false }),
    );
    return () => controller.abort();
  }, inputs);
  return state;
}

/** The size of an element: [ref, width, height]. */
export function useSize() {
  const ref = useRef(null);
  const [size, set] = useState([0, 0]);
  useLayoutEffect(() => {
    const measure = () => ref.current && set((old) => {
      const { clientWidth: width, clientHeight: height } = ref.current;
      return old[0] === width && old[1] === height ? old : [width, height];
    });
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return [ref, ...size];
}

/** Calls `handle(event)` for keys pressed in `root`, outside of text boxes and dialogs. */
export function useKeys(handle, root = window) {
  const latest = useRef(handle);
  latest.current = handle;
  useLayoutEffect(() => { // before the page is seen: no key is lost
    const listen = (event) => {
      const target = event.target;
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (target instanceof HTMLElement && target.closest("input:not([type=range]), select, textarea, dialog")) return;
      if (latest.current(event)) event.preventDefault();
    };
    root.addEventListener("keydown", listen);
    return () => root.removeEventListener("keydown", listen);
  }, [root]);
}

/** Whether a media query matches. */
export function useMedia(query) {
  const [matches, set] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const list = matchMedia(query);
    const listen = () => set(list.matches);
    list.addEventListener("change", listen);
    return () => list.removeEventListener("change", listen);
  }, [query]);
  return matches;
}

/** Changes with the theme: what is drawn with its colors is drawn again. */
export function useTheme() {
  const [theme, set] = useState(0);
  useEffect(() => {
    const change = () => set((n) => n + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    window.addEventListener("theme", change);
    dark.addEventListener("change", change);
    return () => {
      window.removeEventListener("theme", change);
      dark.removeEventListener("change", change);
    };
  }, []);
  return theme;
}

const probe = document.createElement("i");

/** A color of the style sheet, for a canvas. */
export function colorOf(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** Marks tables that are wider than their box: the style says that they scroll. */
const wide = new ResizeObserver((entries) => {
  for (const { target } of entries) target.toggleAttribute("data-wide", target.scrollWidth > target.clientWidth + 1);
});
export const watchWidth = (element) => element && wide.observe(element);

/** The index of the last point of a curve at or before a step. */
export function indexOf(curve, step) {
  if (!curve.steps) return Math.min(step, (curve.values[0]?.length ?? 1) - 1);
  let low = 0, high = curve.steps.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (curve.steps[middle] <= step) low = middle;
    else high = middle - 1;
  }
  return low;
}

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

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
