// Preact's names, and small hooks that several parts of the page use.
export {
  h, html, render, createContext, useState, useReducer, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useContext,
} from "./preact-htm.module.js";
import { useEffect, useLayoutEffect, useReducer, useState, useRef } from "./preact-htm.module.js";

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
