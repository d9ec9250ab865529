// The rows of the episode list, fetched in pages as they are shown. A dataset may have millions.
import { get } from "./source.js";
import { Store } from "./lib.js";

const PAGE = 100;
const MOST_PAGES = 60;
const AT_ONCE = 3;

export class Rows extends Store {
  total = null;
  error = null;
  scanned = true;
  #pages = new Map(); // number -> rows, least recently used first
  #wanted = [];
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

  /** Fetches the rows of [start, stop), and forgets what was wanted before. */
  want(start, stop) {
    const last = Math.floor(Math.max(start, Math.min(stop, this.total ?? stop) - 1) / PAGE);
    this.#wanted = [];
    for (let page = Math.floor(start / PAGE); page <= last; page++) {
      const rows = this.#pages.get(page);
      if (rows) {
        this.#pages.delete(page);
        this.#pages.set(page, rows);
      } else if (!this.#loading.has(page)) this.#wanted.push(page);
    }
    this.#fetch();
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
    for (const page of [...this.#pages.keys()]) if (!shown(page)) this.#pages.delete(page);
    for (const page of [...this.#pages.keys()]) if (!this.#loading.has(page)) this.#load(page);
  }

  close() {
    this.#wanted = [];
    for (const controller of this.#loading.values()) controller.abort();
  }

  #fetch() {
    while (this.#wanted.length && this.#loading.size < AT_ONCE) this.#load(this.#wanted.shift());
  }

  async #load(page) {
    const controller = new AbortController();
    this.#loading.set(page, controller);
    try {
      const answer = await get("/api/episodes", { ...this.query, offset: page * PAGE, limit: PAGE }, controller.signal);
      this.#pages.set(page, answer.rows);
      if (this.#pages.size > MOST_PAGES) this.#pages.delete(this.#pages.keys().next().value);
      this.total = answer.total;
      this.scanned = answer.scanned;
      this.error = null;
    } catch (error) {
      if (!controller.signal.aborted) this.error = error.message;
    } finally {
      this.#loading.delete(page);
    }
    if (controller.signal.aborted) return;
    this.emit();
    this.#fetch();
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
