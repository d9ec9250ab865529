// The page of `rlds-beam browse`: a bar, and the episode list or an episode.
import { Text, count, html, line, number, render, seconds, shortKey, useEffect, useKeys, useLoaded, useRef, useState, useStore } from "./lib.js";
import { Copy, FlagButton, FlagCount, Help, ThemeButton, flagsOf } from "./dialogs.js";
import { ListPage } from "./list.js";
import { Made } from "./made.js";
import { rowsOf } from "./rows.js";
import { datasets, get, link, route, useRoute } from "./source.js";
import { Section, Totals, openBlocks, sectionsOf } from "./summary.js";
import { Viewer } from "./viewer.js";

function App() {
  const state = useRoute();
  const { all, error } = useStore(datasets);
  const [helping, help] = useState(false);
  useKeys((event) => {
    if (event.key === "?") help(true);
    return event.key === "?";
  });
  const dataset = datasets.find(state.dataset);
  useEffect(() => {
    const place = state.episode ? `${state.episode} – ` : "";
    document.title = line(`${place}${dataset?.name ?? ""} – rlds-beam`, 200);
  }, [state.episode, dataset?.name]);
  if (error && !all) return html`<main><p class="error" role="alert">${line(error, 500)}</p></main>`;
  if (!dataset) return html`<main><p class="wait">Loading…</p></main>`;
  return html`
    <${Bar} state=${state} all=${all} dataset=${dataset} help=${() => help(true)} />
    ${error && html`<p class="error" role="alert">${line(error, 500)}</p>`}
    ${state.episode ? html`<${EpisodePage} state=${state} dataset=${dataset} />`
      : state.view === "summary" ? html`<${Overview} key=${dataset.id} dataset=${dataset} />` : html`<${ListPage} key=${dataset.id} state=${state} dataset=${dataset} />`}
    ${helping && html`<${Help} onClose=${() => help(false)} />`}`;
}

function Bar({ state, all, dataset, help }) {
  const open = (id) => route.go({ dataset: id, episode: "", sort: "", desc: "", filter: "", text: "", split: "", rule: "", at: "", t: "", tab: "" });
  return html`<header class="bar top">
    <a class="brand" ...${link({ episode: "", t: "", tab: "" })}>rlds-beam</a>
    ${all.length > 1 ? html`<select aria-label="Dataset" class="dataset" value=${dataset.id} onChange=${(e) => open(e.target.value)}>
      ${all.map((one) => html`<option value=${one.id}>${line(one.name, 80)} (${line(one.format, 20)})</option>`)}</select>`
      : html`<span class="dataset clip" title=${line(dataset.path)}><bdi>${line(dataset.name, 120)}</bdi> <span class="muted small">${line(dataset.format, 20)}</span></span>`}
    <${Scan} scan=${dataset.scan} />
    <span class="push"></span>
    ${dataset.summary && html`<button aria-pressed=${state.view === "summary" && !state.episode} onClick=${() => route.go({ view: state.view === "summary" && !state.episode ? "" : "summary", episode: "" })}>Summary</button>`}
    <${FlagCount} key=${dataset.id} dataset=${dataset} /><${ThemeButton} />
    <button class="icon" aria-label="Help" title="?" onClick=${help}>?</button>
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

function EpisodePage({ state, dataset }) {
  const { data, error, loading } = useLoaded(
    (signal) => get("/api/episode", { dataset: dataset.id, key: state.episode }, signal), [dataset.id, state.episode]);
  const go = useNeighbors(state, dataset, data?.key === state.episode ? data : null);
  useKeys((event) => { // also while an episode is loaded
    const action = { "[": () => go(-1), "]": () => go(1), Escape: () => route.go(BACK) }[event.key];
    action?.();
    return Boolean(action);
  });
  if (error) return html`<main class="episode"><p class="error" role="alert"><bdi>${line(error, 1000)}</bdi></p><p><a ...${link(BACK)}>Back to the list</a></p></main>`;
  if (!data || data.key !== state.episode) return html`<main class="episode"><p class="wait">${loading ? "Loading…" : ""}</p></main>`;
  return html`<${Episode} key=${data.key} state=${state} dataset=${dataset} episode=${data} go=${go} />`;
}

const BACK = { episode: "", t: "", tab: "", with: "" };

/** Opens the episode `by` places on, after those asked for before: in the list if it was opened there, otherwise in the dataset's order. */
function useNeighbors(state, dataset, episode) {
  const turn = useRef(Promise.resolve());
  const open = async (by) => {
    const at = Number(route.state.at) + by;
    const inList = route.state.at !== "";
    const key = inList ? (await rowsOf(state, dataset.id).row(at))?.key : by < 0 ? episode?.previous : episode?.next;
    if (key && route.state.episode) route.go({ episode: key, at: inList ? String(at) : "", t: "", with: "" });
  };
  return (by) => { turn.current = turn.current.then(() => open(by)); };
}

function Episode({ state, dataset, episode, go }) {
  const flags = useStore(flagsOf(dataset));
  const [other, ...key] = state.with.split(" ");
  return html`<main class="episode">
    <${Title} ...${{ state, dataset, episode, flags, go }} />
    ${episode.instruction && html`<p class="instruction"><${Text} value=${episode.instruction} /></p>`}
    ${!episode.readable && html`<p class="error" role="alert">This record cannot be read: it has no steps.</p>`}
    <${Viewer} ...${{ dataset, episode, step: state.t, tab: state.tab, panels: MADE }} onStep=${(step) => route.note(step)}
      onTab=${(name) => route.go({ tab: name === "curves" ? "" : name, ...(name !== "compare" && { with: "" }) }, true)}
      beside=${key.length ? { dataset: other, key: key.join(" ") } : null}
      onBeside=${(one) => route.go({ with: `${one.dataset} ${one.key}` }, true)} />
  </main>`;
}

const MADE = { made: ["What the learner sees", Made] };

function Title({ state, dataset, episode, flags, go }) {
  const inList = state.at !== "";
  return html`<div class="bar title">
    <a class="button" ...${link(BACK)}>← List</a>
    <button aria-label="Previous episode" title="[" disabled=${inList ? Number(state.at) === 0 : !episode.previous} onClick=${() => go(-1)}>‹</button>
    <button aria-label="Next episode" title="]" disabled=${!inList && !episode.next} onClick=${() => go(1)}>›</button>
    <h1>Episode ${number(episode.index)}</h1>
    <span class="mono clip" title=${line(episode.key)}><bdi>${shortKey(episode.key)}</bdi></span><${Copy} text=${episode.key} what="the key" />
    <span class="muted small">${count(episode.steps, "step")}${(episode.fps ?? dataset.fps) ? `, ${seconds(episode.steps / (episode.fps ?? dataset.fps))} at ${number(episode.fps ?? dataset.fps)} fps` : ""}</span>
    ${episode.rejected && html`<span class="badge bad">rejected: <bdi>${line(episode.rejected, 60)}</bdi></span>`}
    <span class="push"></span>
    <${FlagButton} flags=${flags} row=${episode} tab=${0} />
  </div>`;
}

/** The summary of a dataset that was measured, as in a report; its episodes are pages of the browser. */
function Overview({ dataset }) {
  const { data, error } = useLoaded((signal) => get("/api/summary", { dataset: dataset.id }, signal), [dataset.id, dataset.summary]);
  useEffect(() => {
    const follow = () => openBlocks(document.getElementById(location.hash.slice(1)));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  if (error) return html`<main><p class="empty">${line(error, 500)}</p></main>`;
  if (!data) return html`<main><p class="wait">Loading…</p></main>`;
  const part = {
    ...data, shown: { rules: [], worst: [] },
    nameOf: (key) => (Object.hasOwn(data.numbers, key) ? `episode ${number(data.numbers[key])}` : shortKey(key)),
    linkTo: (key) => link({ view: "", episode: key, at: "", t: "" }),
  };
  return html`<div class="report overview"><main><${Totals} part=${part} />
    ${sectionsOf(part).map((section) => html`<${Section} key=${section.id} ...${{ part, section, show: () => null }} />`)}</main></div>`;
}

const root = document.querySelector("#app");
root.replaceChildren();
render(html`<${App} />`, root);
