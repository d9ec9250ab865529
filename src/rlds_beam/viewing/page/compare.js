// Another episode next to this one, in sync: the same one of the dataset that was converted to or from this one, or any.
import { cell, clamp, count, html, line, number, useEffect, useLoaded, useMemo, useState, useStore, watchWidth } from "./lib.js";
import { Cameras, Frames } from "./cameras.js";
import { Curves, View } from "./curves.js";
import { Player } from "./player.js";
import { datasets, episodeLink, get } from "./source.js";

const LISTED = 200; // episodes of a dataset that a list offers; more are chosen by number

/** The episode that is chosen, or the same one of the other dataset, or the next one: {dataset, key, how, episode}. */
async function loadOther(dataset, episode, beside, signal) {
  let other = beside;
  if (!other && dataset.compare_to != null) other = await get("/api/counterpart", { dataset: dataset.id, key: episode.key }, signal);
  if (!other) {
    const { rows } = await get("/api/episodes", { dataset: dataset.id, offset: Math.max(0, episode.index - 1), limit: 3 }, signal);
    const next = rows.find((one) => one.index > episode.index) ?? rows.find((one) => one.key !== episode.key) ?? rows[0];
    other = { dataset: dataset.id, key: next?.key ?? null };
  }
  return { ...other, episode: other.key && (await get("/api/episode", { dataset: other.dataset, key: other.key }, signal)) };
}

export function Compare({ dataset, episode, player, view, beside, onBeside }) {
  const { data, error } = useLoaded((signal) => loadOther(dataset, episode, beside, signal), [dataset.id, episode.key, beside?.dataset, beside?.key]);
  if (error) return html`<p class="error"><bdi>${line(error, 1000)}</bdi></p>`;
  if (!data) return html`<p class="wait">Loading…</p>`;
  const chooser = html`<${Chooser} key=${data.dataset} chosen=${data} onChoose=${onBeside} />
    ${data.how && html`<p class="muted"><bdi>${line(data.how, 400)}</bdi></p>`}`;
  return html`<div class="compare">
    ${data.episode ? html`<${Both} key=${`${data.dataset} ${data.key}`} here=${dataset} there=${datasets.find(data.dataset)} ...${{ episode, other: data.episode, player, view, chooser }} />`
      : html`${chooser}<p class="empty">There is no such episode in the other dataset.</p>`}
  </div>`;
}

/** Chooses the other dataset and episode. */
function Chooser({ chosen, onChoose }) {
  const [error, fail] = useState("");
  const { data } = useLoaded((signal) => get("/api/episodes", { dataset: chosen.dataset, limit: LISTED }, signal), [chosen.dataset]);
  const choose = async (dataset, offset) => {
    try {
      const { rows } = await get("/api/episodes", { dataset, offset: clamp(offset, 0, 1e15), limit: 1 });
      if (rows.length) onChoose({ dataset, key: rows[0].key });
      fail(rows.length ? "" : `there is no episode ${offset}`);
    } catch (reason) {
      fail(reason.message);
    }
  };
  const rows = data?.rows ?? [], total = data?.total ?? 0;
  const place = total > LISTED ? chosen.episode?.index ?? 0 : rows.findIndex((one) => one.key === chosen.key);
  const name = (row) => `${row.named ?? `episode ${number(row.index)}`} ${line(row.instruction ?? "", 60)}`;
  return html`<div class="bar chooser"><span class="muted">Next to</span>
    ${datasets.all.length > 1 && html`<select aria-label="Dataset to compare with" value=${chosen.dataset} onChange=${(event) => choose(event.target.value, 0)}>
      ${datasets.all.map((one) => html`<option value=${one.id}>${line(one.name, 80)}</option>`)}</select>`}
    ${total > LISTED ? html`<input type="number" class="mono" aria-label="Episode to compare with" min="0" max=${total - 1} value=${place} onChange=${(event) => choose(chosen.dataset, Number(event.target.value))} />`
      : html`<select aria-label="Episode to compare with" value=${String(place)} onChange=${(event) => choose(chosen.dataset, Number(event.target.value))}>
        ${rows.map((row, i) => html`<option value=${String(i)}>${name(row)}</option>`)}</select>`}
    <button type="button" aria-label="Previous episode to compare with" disabled=${place <= 0} onClick=${() => choose(chosen.dataset, place - 1)}>‹</button>
    <button type="button" aria-label="Next episode to compare with" disabled=${place >= total - 1} onClick=${() => choose(chosen.dataset, place + 1)}>›</button>
    ${error && html`<span class="bad small">${line(error, 200)}</span>`}</div>`;
}

/** The clock of the other episode: `ratio` of its steps are one step of the leader, which it asks to seek. */
class Follower extends Player {
  constructor(leader, ratio, steps, fps) {
    super(steps, fps, leader.step * ratio);
    Object.assign(this, { leader, ratio });
  }

  follow = () => super.seek(this.leader.step * this.ratio);

  seek(step) {
    this.leader.seek(step / this.ratio);
  }
}

class FollowingView extends View {
  constructor(leader, ratio, beside) {
    super(leader.whole[1] * ratio);
    Object.assign(this, { leader, ratio, beside });
    this.follow();
  }

  follow = () => {
    this.whole = this.leader.whole.map((one) => one * this.ratio);
    super.zoom(this.leader.range[0] * this.ratio, this.leader.range[1] * this.ratio);
  };

  zoom(low, high) {
    this.leader.zoom(low / this.ratio, high / this.ratio);
  }
}

/** The other episode follows the player and the zoom of this one: in time if both rates are known, otherwise by steps. */
function Both({ here, there, episode, other, player, view, chooser }) {
  const rates = [episode.fps ?? here.fps, other.fps ?? there.fps];
  const ratio = rates[0] && rates[1] ? rates[1] / rates[0] : 1;
  const parts = useMemo(() => ({
    frames: new Frames(there.id, other), player: new Follower(player, ratio, other.steps, rates[1] ?? player.fps), view: new FollowingView(view, ratio, episode.curves),
  }), [other]);
  useEffect(() => {
    const follow = () => {
      parts.player.follow();
      parts.frames.want(parts.player.step, player.forward, player.stride);
    };
    const stops = [player.subscribe(follow), view.subscribe(parts.view.follow)];
    follow();
    view.extend((other.steps - 1) / ratio, other.curves);
    return () => {
      for (const stop of stops) stop();
      parts.frames.close();
      view.extend(0);
    };
  }, [parts, player]);
  const { step, last } = useStore(parts.player);
  const late = useStore(player).step * ratio > last + 0.5;
  return html`
    <${Cameras} dataset=${there.id} episode=${other} player=${parts.player} frames=${parts.frames} />
    <div class="other">${chooser}
      <h3 class="clip"><a ...${episodeLink(there.id, other.key)}><bdi>${line(there.name, 120)}</bdi> <bdi title=${line(other.key)}>${other.named ?? `episode ${number(other.index)}`}</bdi></a>${" "}
        <span class="muted small">at step ${number(step)}${late ? ", its last" : ""}${other.instruction && html` · <bdi>${line(other.instruction, 120)}</bdi>`}</span></h3></div>
    <${Curves} dataset=${there} episode=${other} ...${parts} bar=${false} />
    <${Differences} ...${{ here, there, episode, other }} />`;
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
  return html`<div class="scroll" ref=${watchWidth}><table class="values"><thead><tr><th></th><th scope="col">here: <bdi>${line(here.format, 40)}</bdi></th><th scope="col">there: <bdi>${line(there.format, 40)}</bdi></th></tr></thead>
    <tbody>${pair("steps", episode.steps, other.steps)}${pair("fps", episode.fps, other.fps)}${pair("instruction", episode.instruction, other.instruction)}
    ${names.map((name) => pair(name, episode.metadata[name], other.metadata[name]))}
    ${paths.map((path) => {
      const { text, odd } = difference(mine.get(path), theirs.get(path));
      return html`<tr class=${odd ? "odd" : ""}><th scope="row"><bdi>${line(path, 120)}</bdi></th><td colspan="2">${text}</td></tr>`;
    })}</tbody></table></div>`;
}
