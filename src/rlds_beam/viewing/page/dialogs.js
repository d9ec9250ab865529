// Modal dialogs: help and flags. The browser keeps the focus inside, and Escape closes them.
import { html, useEffect, useLoaded, useRef, useState, useStore } from "./lib.js";
import { episodeLink, get } from "./source.js";
import { download, flagsOf } from "./flags.js";
import { count, line, number, quoted, shortKey } from "./text.js";

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
    ["Enter", "open"], ["f", "flag"], ["/", "search"], ["g", "list or grid of first frames"],
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

export function FlagsDialog({ dataset, onClose }) {
  const flags = useStore(flagsOf(dataset));
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
