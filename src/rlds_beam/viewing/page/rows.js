// The rows of the episode list, fetched in pages as they are shown: a dataset may have millions. Only what is visible is rendered.
import { Store, clamp, html, useEffect, useLayoutEffect, useRef, useSize, useState } from "./lib.js";
import { get } from "./source.js";

const PAGE = 100;
const MOST_PAGES = 60;

class Rows extends Store {
  total = null;
  error = null;
  #pages = new Map(); // number -> rows, least recently used first
  #loading = new Map(); // number -> AbortController

  constructor(query) {
    super();
    this.query = query;
    this.want(0, PAGE);
  }

  /** The row at a position of the list; undefined while it is on its way. */
  at(position) {
    return this.#pages.get(Math.floor(position / PAGE))?.[position % PAGE];
  }

  /** Fetches the rows of [start, stop). */
  want(start, stop) {
    const last = Math.floor(Math.max(start, Math.min(stop, this.total ?? stop) - 1) / PAGE);
    for (let page = Math.floor(start / PAGE); page <= last; page++) {
      const rows = this.#pages.get(page);
      if (rows) {
        this.#pages.delete(page);
        this.#pages.set(page, rows);
      } else if (!this.#loading.has(page)) this.#load(page);
    }
  }

  /** Waits for a row; null if there is none. */
  async row(position) {
    if (position < 0) return null;
    const page = Math.floor(position / PAGE);
    if (!this.#pages.has(page)) await this.#load(page);
    return this.at(position) ?? null;
  }

  /** Fetches what is shown again: a scan has new values. The old rows stay until then. */
  refresh(start, stop) {
    const shown = (page) => page >= Math.floor(start / PAGE) && page <= Math.floor(Math.max(start, stop - 1) / PAGE);
    for (const page of [...this.#pages.keys()]) {
      if (!shown(page)) this.#pages.delete(page);
      else if (!this.#loading.has(page)) this.#load(page);
    }
  }

  close() {
    for (const controller of this.#loading.values()) controller.abort();
  }

  async #load(page) {
    const controller = new AbortController();
    this.#loading.set(page, controller);
    try {
      const answer = await get("/api/episodes", { ...this.query, offset: page * PAGE, limit: PAGE }, controller.signal);
      this.#pages.set(page, answer.rows);
      if (this.#pages.size > MOST_PAGES) this.#pages.delete(this.#pages.keys().next().value);
      this.total = answer.total;
      this.error = null;
    } catch (error) {
      if (!controller.signal.aborted) this.error = error.message;
    } finally {
      this.#loading.delete(page);
    }
    if (!controller.signal.aborted) this.emit();
  }
}

let current = { name: null, rows: null };

/** The rows of the list as the address describes it; the same object while that is unchanged. */
export function rowsOf(state, dataset) {
  const { sort, desc, filter, text, split, rule } = state;
  const query = { dataset, sort, desc, filter: filter.split(/;|\s+and\s+/).map((one) => one.trim()), text, split, rule };
  const name = JSON.stringify(query);
  if (current.name !== name) {
    current.rows?.close();
    current = { name, rows: new Rows(query) };
  }
  return current.rows;
}

const TALLEST = 8_000_000; // pixels; Firefox allows about 17 million, Chromium 33 million
const MARGIN = 6; // rows rendered beyond the edges

/**
 * Scrolls over `rows` rows of `height` pixels; above TALLEST, a pixel of the scroll bar stands for several of the list.
 *
 * `control.current` becomes {reveal(row), page}: scrolls a row into view, and the number of rows of a page.
 */
export function Virtual({ rows, height, render, onRange, control, label, head, ...rest }) {
  const [box, , visible] = useSize();
  const [top, setTop] = useState(0);
  const header = useRef(null);
  const room = Math.max(0, visible - (header.current?.offsetHeight ?? 0));
  const full = rows * height, tall = Math.min(full, TALLEST);
  const scale = full > tall ? (full - room) / Math.max(1, tall - room) : 1;
  const start = clamp(top * scale, 0, Math.max(0, full - room)); // pixels of the list above the edge of the box
  const first = Math.max(0, Math.floor(start / height) - MARGIN);
  const stop = Math.min(rows, Math.ceil((start + room) / height) + MARGIN);
  useEffect(() => onRange(first, stop), [first, stop, rows, onRange]);
  useLayoutEffect(() => {
    const moveTo = (pixels) => {
      box.current.scrollTop = pixels / scale;
      setTop(box.current.scrollTop);
    };
    control.current = {
      page: Math.max(1, Math.floor(room / height) - 1),
      reveal(row, center) {
        const above = row * height, seen = box.current.scrollTop * scale;
        if (center) moveTo(above - (room - height) / 2);
        else if (above < seen) moveTo(above);
        else if (above + height > seen + room) moveTo(above + height - room + scale);
      },
    };
  });
  const shift = Math.min(top, tall) - start; // what the scroll bar is off by
  const shown = [];
  for (let row = first; row < stop; row++) shown.push(render(row, { top: `${row * height + shift}px`, height: `${height}px` }));
  return html`<div class="virtual" ref=${box} ...${rest} aria-label=${label} onScroll=${(event) => setTop(event.target.scrollTop)}>
    <div class="virtual-head" ref=${header}>${head}</div>
    <div class="virtual-body" role="presentation" style=${{ height: `${tall}px` }}>${shown}</div>
  </div>`;
}
