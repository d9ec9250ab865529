// The page of one episode in the browser.
import { html, useLoaded, useKeys, useRef, useStore } from "./lib.js";
import { Copy } from "./dialogs.js";
import { FlagButton, flagsOf } from "./flags.js";
import { Made } from "./made.js";
import { link, route } from "./route.js";
import { rowsOf } from "./rows.js";
import { get } from "./source.js";
import { Text, count, line, number, seconds, shortKey } from "./text.js";
import { Viewer } from "./viewer.js";

export function EpisodePage({ state, dataset }) {
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
