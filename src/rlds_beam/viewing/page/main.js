// The page of `rlds-beam browse`: a bar, and the episode list or an episode.
import { html, render, useEffect, useState, useKeys, useStore } from "./lib.js";
import { datasets } from "./datasets.js";
import { FlagsDialog, Help } from "./dialogs.js";
import { EpisodePage } from "./episode.js";
import { flagsOf } from "./flags.js";
import { ListPage } from "./list.js";
import { Overview } from "./overview.js";
import { link, route, useRoute } from "./route.js";
import { line, number } from "./text.js";

const THEMES = { system: "◐", light: "☀", dark: "☾" };

function App() {
  const state = useRoute();
  const { all, error } = useStore(datasets);
  const [dialog, show] = useState(null);
  useKeys((event) => {
    if (event.key !== "?") return false;
    show("help");
    return true;
  });
  const dataset = datasets.find(state.dataset);
  useEffect(() => {
    const place = state.episode ? `${state.episode} – ` : "";
    document.title = line(`${place}${dataset?.name ?? ""} – rlds-beam`, 200);
  }, [state.episode, dataset?.name]);
  if (error && !all) return html`<main><p class="error" role="alert">${line(error, 500)}</p></main>`;
  if (!dataset) return html`<main><p class="wait">Loading…</p></main>`;
  return html`
    <${Bar} state=${state} all=${all} dataset=${dataset} show=${show} />
    ${error && html`<p class="error" role="alert">${line(error, 500)}</p>`}
    ${state.episode ? html`<${EpisodePage} state=${state} dataset=${dataset} />`
      : state.view === "summary" ? html`<${Overview} key=${dataset.id} dataset=${dataset} />` : html`<${ListPage} key=${dataset.id} state=${state} dataset=${dataset} />`}
    ${dialog === "help" && html`<${Help} onClose=${() => show(null)} />`}
    ${dialog === "flags" && html`<${FlagsDialog} dataset=${dataset} onClose=${() => show(null)} />`}`;
}

function Bar({ state, all, dataset, show }) {
  const flags = useStore(flagsOf(dataset));
  const [theme, setTheme] = useState(window.theme.get());
  const turn = () => {
    const names = Object.keys(THEMES);
    const next = names[(names.indexOf(theme) + 1) % names.length];
    window.theme.set(next);
    setTheme(next);
  };
  const open = (id) => route.go({ dataset: id, episode: "", sort: "", desc: "", filter: "", text: "", split: "", rule: "", at: "", t: "", tab: "" });
  return html`<header class="bar top">
    <a class="brand" ...${link({ episode: "", t: "", tab: "" })}>rlds-beam</a>
    ${all.length > 1 ? html`<select aria-label="Dataset" class="dataset" value=${dataset.id} onChange=${(e) => open(e.target.value)}>
      ${all.map((one) => html`<option value=${one.id}>${line(one.name, 80)} (${line(one.format, 20)})</option>`)}</select>`
      : html`<span class="dataset clip" title=${line(dataset.path)}><bdi>${line(dataset.name, 120)}</bdi> <span class="muted small">${line(dataset.format, 20)}</span></span>`}
    <${Scan} scan=${dataset.scan} />
    <span class="push"></span>
    ${dataset.summary && html`<button aria-pressed=${state.view === "summary" && !state.episode} onClick=${() => route.go({ view: state.view === "summary" && !state.episode ? "" : "summary", episode: "" })}>Summary</button>`}
    <button onClick=${() => show("flags")} aria-label=${`Flagged episodes: ${flags.all.size}`}>⚑ ${number(flags.all.size)}</button>
    <button class="icon" aria-label=${`Theme: ${theme}`} title=${`Theme: ${theme}`} onClick=${turn}>${THEMES[theme] ?? THEMES.system}</button>
    <button class="icon" aria-label="Help" title="?" onClick=${() => show("help")}>?</button>
  </header>`;
}

/** How far the scan in the background is. Announced in steps of 10 %. */
function Scan({ scan }) {
  const done = scan.total ? Math.floor((100 * scan.done) / scan.total) : null;
  const said = { running: done === null ? "checking episodes" : `checking episodes: ${Math.floor(done / 10) * 10} %`, failed: "the check failed" }[scan.state] ?? "";
  return html`<span class="scan">
    <span role="status" aria-live="polite" class="hidden">${said}</span>
    ${scan.state === "running" && html`<progress max="100" value=${done ?? undefined} aria-hidden="true"></progress>
      <span class="muted small" aria-hidden="true">checking${done === null ? ` ${number(scan.done)}` : ` ${done} %`}</span>`}
    ${scan.error && html`<span class="badge bad" title=${line(scan.error)}>${said}: <bdi>${line(scan.error, 80)}</bdi></span>`}
  </span>`;
}

const root = document.querySelector("#app");
root.replaceChildren();
render(html`<${App} />`, root);
