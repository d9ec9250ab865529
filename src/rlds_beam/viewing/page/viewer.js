// An episode: its cameras with the player, next to its curves, values, metadata, and another episode. For the browser and reports.
import { html, useEffect, useKeys, useMemo, useRef, useState, useStore } from "./lib.js";
import { Cameras, Frames, LargeFrames } from "./cameras.js";
import { Compare } from "./compare.js";
import { Curves, View, ZoomBar } from "./curves.js";
import { flagsOf } from "./dialogs.js";
import { Marks, Player, Timeline, Transport } from "./player.js";
import { Metadata, StepTexts, StepValues } from "./values.js";

const PANELS = { curves: ["Curves", Curves], step: ["Values", StepValues], about: ["Metadata", Metadata] };

/** The clock, images, and view of an episode; closed with it. */
function usePlayback(dataset, episode, step, onStep) {
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
      timer = setTimeout(() => onStep?.(player.step), 300);
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

/**
 * `panels`: more tabs, name -> [label, component]. `tab` and `beside` (the episode to compare with: its dataset and key)
 * are changed by `onTab` and `onBeside`. `keys`: the element or window whose keys control it.
 */
export function Viewer({ dataset, episode, step, panels = {}, tab, onTab, beside, onBeside, onStep, keys }) {
  const { frames, player, view } = usePlayback(dataset, episode, Number(step), onStep);
  const flags = useStore(flagsOf(dataset));
  const [large, enlarge] = useState(false);
  useEffect(() => {
    const t = Number(step);
    if (step && Number.isFinite(t)) player.seek(t); // the address was changed by hand, or by "back"
  }, [step]);
  const onKey = (event) => episodeKey(event, { player, view, marks: episode.marks, flag: () => flags.toggle(episode.key), enlarge: () => enlarge(!large) });
  useKeys(onKey, keys);
  const all = { ...PANELS, ...panels, compare: ["Compare", Compare] };
  const name = Object.hasOwn(all, tab) ? tab : "curves";
  const fps = episode.fps ?? dataset.fps;
  const parts = { dataset, episode, player, view, frames, beside, onBeside };
  const cameras = { ...parts, dataset: dataset.id };
  return html`<div class="halves ${episode.cameras.length || name === "compare" ? "" : "single"} ${name === "compare" ? "both" : ""}">
    <section class="left" aria-label="Player">
      <${Cameras} ...${cameras} enlarge=${() => enlarge(true)} />
      <div class="controls">${episode.steps > 0 && html`<${Timeline} player=${player} marks=${episode.marks} /><${Transport} player=${player} fps=${fps} />`}
      <${Marks} player=${player} marks=${episode.marks} />
      <${StepTexts} texts=${episode.texts} player=${player} instruction=${episode.instruction} />
      ${name === "compare" && html`<${ZoomBar} view=${view} />`}</div>
      ${name === "compare" && html`<${Curves} ...${parts} bar=${false} />`}
    </section>
    <${Tabs} ...${{ all, name, onTab, parts }} />
    ${large && html`<${LargeFrames} ...${{ ...cameras, fps, onKey, onClose: () => enlarge(false) }} />`}
  </div>`;
}

function Tabs({ all, name, onTab, parts }) {
  const list = useRef(null);
  const id = useMemo(() => `panel-${parts.dataset.id}-${parts.episode.index}`, []);
  useEffect(() => { // on a phone, the tabs are wider than the screen
    const selected = list.current.querySelector('[aria-selected="true"]');
    list.current.scrollLeft = selected.offsetLeft - list.current.offsetLeft - (list.current.clientWidth - selected.offsetWidth) / 2;
  }, [name]);
  const key = (event) => {
    const names = Object.keys(all);
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const next = ([...list.current.children].indexOf(event.target) + by + names.length) % names.length;
    onTab(names[next]);
    list.current.children[next].focus();
  };
  return html`<section class="right" aria-label="Data">
    <div role="tablist" class="tabs" ref=${list} onKeyDown=${key}>${Object.entries(all).map(([one, [label]]) => html`<button type="button" role="tab" key=${one}
      id=${`${id}-${one}`} aria-selected=${one === name} aria-controls=${id} tabindex=${one === name ? 0 : -1} onClick=${() => onTab(one)}>${label}</button>`)}</div>
    <div role="tabpanel" id=${id} aria-labelledby=${`${id}-${name}`}><${all[name][1]} key=${name} ...${parts} /></div>
  </section>`;
}

function episodeKey(event, { player, view, marks, flag, enlarge }) {
  const by = event.shiftKey ? 10 : 1;
  const steps = marks.map((one) => one.step).filter((one) => one != null);
  const actions = {
    " ": () => player.toggle(), ArrowRight: () => player.seek(player.step + by), ArrowLeft: () => player.seek(player.step - by),
    Home: () => player.seek(0), End: () => player.seek(player.last), f: flag, e: enlarge,
    "<": () => player.faster(-1), ">": () => player.faster(1),
    "+": () => view.scale(0.5, player.step), "=": () => view.scale(0.5, player.step), "-": () => view.scale(2, player.step), 0: () => view.zoom(...view.whole),
    n: () => player.seek(steps.find((one) => one > player.step) ?? player.step), p: () => player.seek(steps.findLast((one) => one < player.step) ?? player.step),
  };
  if (event.key === " " && event.target.closest?.("button, a, summary")) return false;
  const action = Object.hasOwn(actions, event.key) && actions[event.key];
  if (action) action();
  return Boolean(action);
}
