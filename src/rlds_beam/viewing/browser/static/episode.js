// The page of one episode.
import { html, useEffect, useMemo, useRef, useState, useStore, useKeys, useLoaded, clamp } from "./lib.js";
import { get } from "./api.js";
import { Cameras } from "./cameras.js";
import { Compare } from "./compare.js";
import { Curves, View } from "./curves.js";
import { flagsOf } from "./flags.js";
import { Frames } from "./images.js";
import { FlagButton } from "./list.js";
import { Made } from "./made.js";
import { Player } from "./player.js";
import { link, route } from "./route.js";
import { rowsOf } from "./rows.js";
import { Marks, Timeline, Transport, marksOf } from "./timeline.js";
import { Text, count, line, number, seconds, shortKey } from "./text.js";
import { Metadata, StepValues, Texts } from "./values.js";

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

const BACK = { episode: "", t: "", tab: "" };

/** The clock, images, and view of an episode; closed with it. */
function usePlayback(dataset, episode, step) {
  const parts = useMemo(() => {
    const frames = new Frames(dataset.id, episode);
    const player = new Player(episode.steps, episode.fps ?? dataset.fps, step, frames.ready);
    return { frames, player, view: new View(player.last) };
  }, [episode]);
  useEffect(() => {
    const { frames, player } = parts;
    const want = () => frames.want(player.step, player.forward, player.stride);
    let timer = 0;
    const note = () => {
      clearTimeout(timer);
      timer = setTimeout(() => route.note(player.step), 300);
    };
    const stops = [player.subscribe(want), player.subscribe(note)];
    want();
    return () => {
      clearTimeout(timer);
      for (const stop of stops) stop();
      player.pause();
      frames.close();
    };
  }, [parts]);
  return parts;
}

/** Opens the episode `by` places on, after those asked for before: in the list if it was opened there, otherwise in the dataset's order. */
function useNeighbors(state, dataset, episode) {
  const turn = useRef(Promise.resolve());
  const open = async (by) => {
    const at = Number(route.state.at) + by;
    const inList = route.state.at !== "";
    const key = inList ? (await rowsOf(state, dataset.id).row(at))?.key : by < 0 ? episode?.previous : episode?.next;
    if (key && route.state.episode) route.go({ episode: key, at: inList ? String(at) : "", t: "" });
  };
  return (by) => { turn.current = turn.current.then(() => open(by)); };
}

function Episode({ state, dataset, episode, go }) {
  const { frames, player, view } = usePlayback(dataset, episode, Number(state.t));
  const flags = useStore(flagsOf(dataset));
  const marks = useMemo(() => marksOf(episode), [episode]);
  useEffect(() => {
    const t = Number(state.t);
    if (state.t !== "" && Number.isFinite(t)) player.seek(t); // the address was changed by hand, or by "back"
  }, [state.t]);
  useKeys((event) => episodeKey(event, { player, view, marks, flag: () => flags.toggle(episode.key) }));
  const parts = { state, dataset, episode, player, view, frames, marks };
  return html`<main class="episode">
    <${Title} ...${parts} flags=${flags} go=${go} />
    ${episode.instruction && html`<p class="instruction"><${Text} value=${episode.instruction} /></p>`}
    ${!episode.readable && html`<p class="error" role="alert">This record cannot be read: it has no steps.</p>`}
    <div class="halves ${episode.cameras.length ? "" : "single"}">
      <section class="left" aria-label="Player">
        <${Cameras} ...${parts} dataset=${dataset.id} />
        ${episode.steps > 0 && html`<${Timeline} player=${player} marks=${marks} /><${Transport} player=${player} fps=${episode.fps ?? dataset.fps} />`}
        <${Marks} player=${player} marks=${marks} />
        <${Texts} texts=${episode.texts} player=${player} instruction=${episode.instruction} />
      </section>
      <${Tabs} ...${parts} />
    </div>
  </main>`;
}

function Title({ state, dataset, episode, flags, go }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(episode.key);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  const inList = state.at !== "";
  return html`<div class="bar title">
    <a class="button" ...${link(BACK)}>← List</a>
    <button aria-label="Previous episode" title="[" disabled=${inList ? Number(state.at) === 0 : !episode.previous} onClick=${() => go(-1)}>‹</button>
    <button aria-label="Next episode" title="]" disabled=${!inList && !episode.next} onClick=${() => go(1)}>›</button>
    <h1>Episode ${number(episode.index)}</h1>
    <button class="link mono clip" title=${`Copy ${line(episode.key)}`} onClick=${copy}><bdi>${copied ? "copied" : shortKey(episode.key)}</bdi></button>
    <span class="muted small">${count(episode.steps, "step")}${(episode.fps ?? dataset.fps) ? `, ${seconds(episode.steps / (episode.fps ?? dataset.fps))} at ${number(episode.fps ?? dataset.fps)} fps` : ""}</span>
    ${episode.rejected && html`<span class="badge bad">rejected: <bdi>${line(episode.rejected, 60)}</bdi></span>`}
    <span class="push"></span>
    <${FlagButton} flags=${flags} row=${episode} tab=${0} />
  </div>`;
}

function Tabs(parts) {
  const { state, dataset, episode } = parts;
  const names = { curves: "Curves", step: "Values", about: "Metadata", ...(dataset.made && { made: "What the learner sees" }), ...(dataset.compare_to != null && { compare: "Compare" }) };
  const tab = Object.hasOwn(names, state.tab) ? state.tab : "curves";
  const list = useRef(null);
  const choose = (name) => route.go({ tab: name === "curves" ? "" : name }, true);
  const key = (event) => {
    const all = Object.keys(names);
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const next = ([...list.current.children].indexOf(event.target) + by + all.length) % all.length;
    choose(all[next]);
    list.current.children[next].focus();
  };
  const panels = { curves: Curves, step: StepValues, about: Metadata, made: Made, compare: Compare };
  return html`<section class="right" aria-label="Data">
    <div role="tablist" class="tabs" ref=${list} onKeyDown=${key}>${Object.entries(names).map(([name, label]) => html`<button role="tab" id=${`tab-${name}`}
      aria-selected=${tab === name} aria-controls="panel" tabindex=${tab === name ? 0 : -1} onClick=${() => choose(name)}>${label}</button>`)}</div>
    <div role="tabpanel" id="panel" aria-labelledby=${`tab-${tab}`}><${panels[tab]} key=${tab} ...${parts} /></div>
  </section>`;
}

function episodeKey(event, { player, view, marks, flag }) {
  const by = event.shiftKey ? 10 : 1;
  const steps = marks.map((one) => one.step).filter((one) => one != null);
  const actions = {
    " ": () => player.toggle(), ArrowRight: () => player.seek(player.step + by), ArrowLeft: () => player.seek(player.step - by),
    Home: () => player.seek(0), End: () => player.seek(player.last), f: flag,
    "<": () => player.faster(-1), ">": () => player.faster(1),
    "+": () => view.scale(0.5, player.step), "=": () => view.scale(0.5, player.step), "-": () => view.scale(2, player.step), 0: () => view.zoom(...view.whole),
    n: () => player.seek(steps.find((one) => one > player.step) ?? player.step), p: () => player.seek(steps.findLast((one) => one < player.step) ?? player.step),
  };
  if (event.key === " " && event.target.closest?.("button, a, summary")) return false;
  const action = Object.hasOwn(actions, event.key) && actions[event.key];
  if (action) action();
  return Boolean(action);
}
