// Flagged episodes of a dataset: kept by this browser, exported as a list for --exclude.
import { html, Store } from "./lib.js";

export class Flags extends Store {
  constructor(path) {
    super();
    this.name = `rlds-beam/flags/${path}`;
    this.#read();
  }

  /** Key -> remark, in the order in which they were flagged. */
  all = new Map();

  has = (key) => this.all.has(key);

  toggle(key, remark = "") {
    if (!this.all.delete(key)) this.all.set(key, remark);
    this.#changed();
  }

  remark(key, text) {
    this.all.set(key, text);
    this.#changed();
  }

  clear() {
    this.all.clear();
    this.#changed();
  }

  /** The file: a key per line, a remark after a tab. */
  toText(dataset) {
    const lines = [...this.all].sort(([a], [b]) => (a < b ? -1 : 1)).map(([key, remark]) => {
      const note = oneLine(remark);
      return note ? `${oneLine(key)}\t${note}` : oneLine(key);
    });
    return [`# Episodes of ${oneLine(dataset)} flagged in rlds-beam browse: ${lines.length}`, ...lines, ""].join("\n");
  }

  #read() {
    this.all = new Map();
    try {
      const held = JSON.parse(localStorage.getItem(this.name) ?? "[]");
      for (const [key, remark] of held) this.all.set(String(key), String(remark));
    } catch {
      // written by something else: begin with none
    }
  }

  #changed() {
    this.all = new Map(this.all);
    try { localStorage.setItem(this.name, JSON.stringify([...this.all])); } catch { /* kept by this page only */ }
    this.emit();
  }
}

const oneLine = (text) => String(text).replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]+/g, " ").trim();

const open = new Map();

/** The flags of a dataset, by its path. */
export function flagsOf(dataset) {
  if (!open.has(dataset.path)) open.set(dataset.path, new Flags(dataset.path));
  return open.get(dataset.path);
}

export const FlagButton = ({ flags, row, tab = -1 }) => html`<button type="button" class="flag" tabindex=${tab} aria-label="Flag" title="Flag (f)"
  aria-pressed=${flags.has(row.key)} onClick=${() => flags.toggle(row.key)}>⚑</button>`;

/** The text as a file of the user's. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
