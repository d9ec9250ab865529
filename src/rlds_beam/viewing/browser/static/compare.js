// The same episode in the dataset that was converted to or from this one, next to it.
import { html, useEffect, useLoaded, useMemo, useStore } from "./lib.js";
import { get } from "./api.js";
import { Cameras } from "./cameras.js";
import { Frames } from "./images.js";
import { link } from "./route.js";
import { Player } from "./player.js";
import { count, cell, line, number, shortKey } from "./text.js";
import { datasets } from "./datasets.js";

async function loadOther(dataset, key, signal) {
  const there = await get("/api/counterpart", { dataset, key }, signal);
  const episode = there.key && (await get("/api/episode", { dataset: there.dataset, key: there.key }, signal));
  return { ...there, episode };
}

export function Compare({ dataset, episode, player }) {
  const { data, error } = useLoaded((signal) => loadOther(dataset.id, episode.key, signal), [dataset.id, episode.key]);
  if (error) return html`<p class="error"><bdi>${line(error, 1000)}</bdi></p>`;
  if (!data) return html`<p class="wait">Loading…</p>`;
  if (!data.episode) return html`<p class="empty"><bdi>${line(data.how ?? "There is no such episode in the other dataset.", 500)}</bdi></p>`;
  return html`<${Both} key=${data.key} here=${dataset} there=${datasets.find(data.dataset)} ...${{ episode, other: data.episode, how: data.how, player }} />`;
}

function Both({ here, there, episode, other, how, player }) {
  const frames = useMemo(() => new Frames(there.id, other), [other]);
  const follower = useMemo(() => new Player(other.steps, other.fps ?? player.fps, player.step), [other]);
  useEffect(() => {
    const follow = () => {
      follower.seek(player.step);
      frames.want(follower.step, player.forward);
    };
    follow();
    const stop = player.subscribe(follow);
    return () => {
      stop();
      frames.close();
    };
  }, [frames, player]);
  const { step } = useStore(player);
  return html`<div class="compare">
    <p class="muted"><bdi>${line(how, 400)}</bdi></p>
    <h3><a ...${link({ dataset: there.id, episode: other.key, at: "" })}><bdi>${line(there.name, 120)}</bdi> <bdi class="mono small">${shortKey(other.key)}</bdi></a>${" "}
      <span class="muted small">at step ${number(Math.min(step, follower.last))}${step > follower.last ? ", its last" : ""}</span></h3>
    <${Cameras} dataset=${there.id} episode=${other} player=${follower} frames=${frames} />
    <${Differences} ...${{ here, there, episode, other }} />
  </div>`;
}

/** The largest difference of two curves, or why they cannot be compared. */
function difference(a, b) {
  if (!a || !b) return { text: a ? "only here" : "only there", odd: true };
  if (a.labels.length !== b.labels.length) return { text: `${a.labels.length} and ${count(b.labels.length, "dimension")}`, odd: true };
  if ((a.values[0]?.length ?? 0) !== (b.values[0]?.length ?? 0)) return { text: "different steps", odd: true };
  let most = 0;
  a.values.forEach((values, i) => values.forEach((value, j) => {
    most = Math.max(most, Math.abs((value ?? 0) - (b.values[i][j] ?? 0)));
  }));
  return most ? { text: `differs by up to ${number(most)}`, odd: true } : { text: "equal" };
}

function Differences({ here, there, episode, other }) {
  const by = (one) => new Map(one.curves.map((curve) => [curve.path, curve]));
  const mine = by(episode), theirs = by(other);
  const paths = [...new Set([...mine.keys(), ...theirs.keys()])];
  const names = [...new Set([...Object.keys(episode.metadata), ...Object.keys(other.metadata)])];
  const pair = (name, a, b) => html`<tr class=${cell(a) === cell(b) ? "" : "odd"}><th scope="row"><bdi>${line(name, 120)}</bdi></th><td><bdi>${cell(a) || "–"}</bdi></td><td><bdi>${cell(b) || "–"}</bdi></td></tr>`;
  return html`<div class="scroll"><table class="values"><thead><tr><th></th><th scope="col">here: <bdi>${line(here.format, 40)}</bdi></th><th scope="col">there: <bdi>${line(there.format, 40)}</bdi></th></tr></thead>
    <tbody>${pair("steps", episode.steps, other.steps)}${pair("fps", episode.fps, other.fps)}${pair("instruction", episode.instruction, other.instruction)}
    ${names.map((name) => pair(name, episode.metadata[name], other.metadata[name]))}
    ${paths.map((path) => {
      const { text, odd } = difference(mine.get(path), theirs.get(path));
      return html`<tr class=${odd ? "odd" : ""}><th scope="row"><bdi>${line(path, 120)}</bdi></th><td colspan="2">${text}</td></tr>`;
    })}</tbody></table></div>`;
}
