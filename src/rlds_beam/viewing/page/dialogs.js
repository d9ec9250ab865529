// Modal dialogs: help and flags. The browser keeps the focus inside, and Escape closes them.
import { Store, count, html, line, number, quoted, shortKey, useEffect, useLoaded, useRef, useState, useStore } from "./lib.js";
import { episodeLink, get } from "./source.js";

export function Dialog({ title, onClose, children, ...rest }) {
  const ref = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    ref.current.showModal();
    return () => before?.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${ref} aria-label=${title} ...${rest} onClose=${onClose} onClick=${(e) => e.target === ref.current && onClose()}>
    <div class="dialog-box">
      <header><h2>${title}</h2><button class="icon" aria-label="Close" onClick=${onClose}>✕</button></header>
      <div class="dialog-body">${children}</div>
    </div>
  </dialog>`;
}

const KEYS = {
  "Everywhere": [["?", "this help"], ["Esc", "close a dialog; go back to the list"]],
  "Episode list": [
    ["↑ ↓ or k j", "previous, next episode"], ["Page Up, Page Down", "a page"], ["Home, End", "first, last episode"],
    ["Enter", "open"], ["f", "flag"], ["/", "search"],
  ],
  "Episode": [
    ["Space", "play or pause"], ["← →", "a step"], ["Shift + ← →", "10 steps"], ["Home, End", "first, last step"],
    ["[ ]", "previous, next episode"], ["n, p", "next, previous mark"], ["< >", "slower, faster"], ["f", "flag"],
    ["+ − 0", "zoom in, out, whole episode"], ["e", "frames as large as the window"],
  ],
  "Curves": [["Click or drag", "go to a step"], ["Shift + drag", "zoom"], ["Ctrl + wheel", "zoom at the pointer"], ["Double-click", "the whole episode"]],
};

export const Help = ({ onClose }) => html`<${Dialog} title="Keyboard and mouse" onClose=${onClose}>
  <div class="keys">${Object.entries(KEYS).map(([part, keys]) => html`<section><h3>${part}</h3><dl>
    ${keys.map(([key, what]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></section>`)}</div>
  <p>Filter: conditions like <code>${"steps < 20"}</code>, <code>${"return >= 0"}</code>, or <code>${"frozen_camera > 0.2"}</code>.
    A comma means "or"; the word <code>and</code> means both.</p>
</${Dialog}>`;

/** A button that copies a text as one line: no line break can run a command. */
export function Copy({ text, what }) {
  const [done, set] = useState(null);
  const copy = async () => {
    set(await navigator.clipboard.writeText(text.replace(/\s+/g, " ").trim()).then(() => true, () => false));
    setTimeout(() => set(null), 1500);
  };
  return html`<button type="button" class="copy ${done ? "done" : ""}" aria-live="polite" aria-label=${done === null ? `Copy ${what}` : undefined}
    onClick=${copy}>${done === null ? "Copy" : done ? "Copied" : "Failed"}</button>`;
}

/** A command with a button that copies it. */
export const Command = ({ text }) => html`<div class="command"><pre tabindex="0"><bdi>${line(text, 4000)}</bdi></pre><${Copy} text=${text} what="the command" /></div>`;

/** A flagged episode, with its length and instruction. */
function Flagged({ dataset, flags, episode, remark }) {
  const { data } = useLoaded((signal) => get("/api/episodes", { dataset: dataset.id, text: episode, limit: 1 }, signal), [dataset.id, episode]);
  const row = data?.rows.find((one) => one.key === episode);
  return html`<li>
    <a ...${episodeLink(dataset.id, episode)} title=${line(episode)}><bdi>${row?.named ?? (row ? `episode ${number(row.index)}` : shortKey(episode))}</bdi></a>
    <span class="muted small clip">${row && html`${row.steps !== null && count(row.steps, "step")}
      ${row.instruction && html` · <bdi>${line(row.instruction, 120)}</bdi>`}`}</span>
    <input aria-label="Remark" placeholder="remark" maxlength="500" value=${remark} onChange=${(e) => flags.remark(episode, e.target.value)} />
    <button class="icon" aria-label="Remove the flag" onClick=${() => flags.toggle(episode)}>✕</button></li>`;
}

/** How many episodes are flagged; a click lists them. */
export function FlagCount({ dataset }) {
  const [dialog, open] = useState(false);
  const flags = useStore(flagsOf(dataset));
  return html`<button type="button" aria-label=${`Flagged episodes: ${flags.all.size}`} onClick=${() => open(true)}>⚑ ${number(flags.all.size)}</button>
    ${dialog && html`<${FlagsDialog} dataset=${dataset} flags=${flags} onClose=${() => open(false)} />`}`;
}

/** Light or dark: the system's theme until the button is used. */
export const ThemeButton = () => html`<button type="button" class="icon theme" aria-label="Switch between light and dark" title="Light or dark"
  onClick=${() => window.theme.set(window.theme.isDark() ? "light" : "dark")}>◐</button>`;

function FlagsDialog({ dataset, flags, onClose }) {
  const shown = [...flags.all].slice(0, 500);
  return html`<${Dialog} title="Flagged episodes" onClose=${onClose}>
    <p>${flags.all.size ? `${count(flags.all.size, "episode")} flagged.` : "No episode is flagged: press f on an episode."}${" "}
      Flags stay in this browser; the dataset is never changed.</p>
    ${shown.length > 0 && html`<ul class="flagged">${shown.map(([key, remark]) => html`<${Flagged} key=${key}
      ...${{ dataset, flags, episode: key, remark }} />`)}</ul>`}
    ${flags.all.size > shown.length && html`<p>… and ${flags.all.size - shown.length} more.</p>`}
    <div class="bar">
      <button class="main" disabled=${!flags.all.size} onClick=${() => download("exclude.txt", flags.toText(dataset.name))}>Download exclude.txt</button>
      <button disabled=${!flags.all.size} onClick=${() => confirm(`Remove all ${flags.all.size} flags?`) && flags.clear()}>Remove all</button>
    </div>
    <p>Then run, with the path of the downloaded file:</p>
    <${Command} text=${`rlds-beam convert ${quoted(dataset.path)} OUTPUT --exclude=exclude.txt${dataset.format === "rlds" ? "" : ` --from=${quoted(dataset.format)}`}`} />
  </${Dialog}>`;
}

/** The flagged episodes of a dataset, kept by this browser: key -> remark, in the order in which they were flagged. */
class Flags extends Store {
  all = new Map();

  constructor(path) {
    super();
    this.name = `rlds-beam/flags/${path}`;
    try {
      this.all = new Map(JSON.parse(localStorage.getItem(this.name) ?? "[]").map(([key, remark]) => [String(key), String(remark)]));
    } catch { /* written by something else: begin with none */ }
  }

  has = (key) => this.all.has(key);

  toggle = (key) => this.#set(this.has(key) ? [...this.all].filter(([one]) => one !== key) : [...this.all, [key, ""]]);

  remark = (key, text) => this.#set([...this.all, [key, text]]);

  clear = () => this.#set([]);

  #set(entries) {
    this.all = new Map(entries);
    try { localStorage.setItem(this.name, JSON.stringify([...this.all])); } catch { /* kept by this page only */ }
    this.emit();
  }

  /** The file: a key per line, a remark after a tab. */
  toText(dataset) {
    const lines = [...this.all].sort(([a], [b]) => (a < b ? -1 : 1)).map((entry) => entry.map(oneLine).filter(Boolean).join("\t"));
    return [`# Episodes of ${oneLine(dataset)} flagged in rlds-beam browse: ${lines.length}`, ...lines, ""].join("\n");
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
function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
