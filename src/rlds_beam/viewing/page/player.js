// The clock of an episode: which step is shown, and how it goes on while playing.
import { Store, clamp, count, html, line, number, seconds, useStore } from "./lib.js";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];

const MOST_RATE = 30; // steps shown in a second

export class Player extends Store {
  playing = false;
  waiting = false;
  speed = 1;
  forward = true;
  #from = [0, 0]; // the step and the time from which we count
  #timer = 0;

  /** `ready(step)` tells whether a step can be shown; the clock waits for it. */
  constructor(steps, fps, step = 0, ready = () => true) {
    super();
    this.steps = steps;
    this.fps = fps || 10;
    this.last = Math.max(0, steps - 1);
    this.step = clamp(Math.round(step) || 0, 0, this.last);
    this.ready = ready;
  }

  /** Steps from one that is shown while playing to the next: fast play leaves some out. */
  get stride() {
    return this.playing ? Math.max(1, Math.round((this.fps * this.speed) / MOST_RATE)) : 1;
  }

  seek(step) {
    const next = clamp(Math.round(step), 0, this.last);
    this.#from = [next, performance.now()];
    if (next === this.step) return;
    this.forward = next > this.step || this.playing;
    this.step = next;
    this.emit();
  }

  toggle = () => (this.playing ? this.pause() : this.play());

  play() {
    if (this.playing || this.steps < 2) return;
    if (this.step === this.last) this.seek(0);
    this.playing = this.forward = true;
    this.#from = [this.step, performance.now()];
    this.#timer = requestAnimationFrame(this.#tick);
    this.emit();
  }

  pause() {
    cancelAnimationFrame(this.#timer);
    if (!this.playing) return;
    this.playing = this.waiting = false;
    this.emit();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.#from = [this.step, performance.now()];
    this.emit();
  }

  faster(by) {
    const at = SPEEDS.findIndex((one) => one >= this.speed);
    this.setSpeed(SPEEDS[clamp(at + by, 0, SPEEDS.length - 1)]);
  }

  #tick = (now) => {
    this.#timer = requestAnimationFrame(this.#tick);
    const [step, time] = this.#from;
    const due = Math.min(this.last, step + Math.floor(((now - time) / 1000) * this.fps * this.speed));
    if (due <= this.step) return;
    let next = this.step;
    let waiting = false;
    while (next < due && !waiting) {
      const after = Math.min(next + this.stride, this.last);
      if (after > due) break;
      waiting = !this.ready(after);
      if (!waiting) next = after;
    }
    if (waiting) this.#from = [next, now]; // the cameras are late: the clock waits for them
    const changed = next !== this.step || waiting !== this.waiting;
    this.step = next;
    this.waiting = waiting;
    if (next === this.last) this.pause();
    if (changed) this.emit();
  };
}

const MOST_MARKS = 200;

const Icon = ({ path }) => html`<svg viewBox="0 0 16 16" aria-hidden="true"><path d=${path} /></svg>`;

/** The class of a mark: of a broken rule, or of a signal. */
export const classOf = (mark) => (mark.kind === "rule" ? "bad" : "warn");

const placeOf = (step, last) => `calc(8px + (100% - 16px) * ${last ? step / last : 0})`;

export function Timeline({ player, marks }) {
  const { step, last } = useStore(player);
  const placed = marks.filter((one) => one.step != null).slice(0, MOST_MARKS);
  const time = step / player.fps;
  return html`<div class="timeline">
    ${placed.length > 0 && html`<div class="lane" role="group" aria-label="Marks">${placed.map((one, i) => html`<button type="button" key=${i}
      class="mark ${classOf(one)}" style=${{ left: placeOf(one.step, last), width: one.stop > one.step + 1 ? `calc((100% - 16px) * ${(Math.min(one.stop, last + 1) - 1 - one.step) / Math.max(1, last)})` : "" }}
      title=${line(`${one.name} at step ${one.step}. ${one.detail}`)} aria-label=${line(`${one.name} at step ${one.step}`)}
      onClick=${() => player.seek(one.step)}></button>`)}</div>`}
    <input type="range" class="scrubber" min="0" max=${last} step="1" value=${step} aria-label="Step"
      aria-valuetext=${`step ${step} of ${last}, ${seconds(time)}`} onInput=${(event) => player.seek(Number(event.target.value))} />
  </div>`;
}

/** The step that a text names: `12`, `1.5 s`, or `1:05`; null if none. */
function stepOf(text, fps) {
  const [, minutes, amount, unit] = text.trim().match(/^(?:(\d+):)?(\d+\.?\d*)\s*(s?)$/) ?? [];
  if (amount === undefined) return null;
  return minutes || unit || amount.includes(".") ? (60 * (minutes ?? 0) + Number(amount)) * fps : Number(amount);
}

export function Transport({ player, fps }) {
  const jump = (event) => {
    const to = stepOf(event.target.value, player.fps);
    if (to !== null) player.seek(to);
    event.target.value = String(player.step);
    if (event.key) event.target.closest(".transport").previousSibling.querySelector(".scrubber").focus(); // its keys move on
  };
  const { step, last, playing, waiting, speed } = useStore(player);
  return html`<div class="bar transport">
    <button class="icon" aria-label="First step" onClick=${() => player.seek(0)}><${Icon} path="M3 3h2v10H3zM13 3v10L6 8z" /></button>
    <button class="main play" aria-label=${playing ? "Pause" : "Play"} title="Space" disabled=${player.steps < 2} onClick=${player.toggle}><${Icon} path=${playing ? "M4 3h3v10H4zM9 3h3v10H9z" : "M4 2v12l10-6z"} /></button>
    <button class="icon" aria-label="Last step" onClick=${() => player.seek(last)}><${Icon} path="M11 3h2v10h-2zM3 3v10l7-5z" /></button>
    <label class="time"><span class="of">step </span><input class="jump" inputmode="decimal" aria-label="Step or time" value=${String(step)} style=${{ width: `${String(last).length + 2}ch` }} title="A step, or a time: 1.5 s, 1:05"
      onFocus=${(event) => event.target.select()} onChange=${jump} onKeyDown=${(event) => event.key === "Enter" && jump(event)} /> <span class="muted">/ ${number(last)}</span></label>
    ${fps && html`<span class="time muted">${seconds(step / fps)} <span class="of">/ ${seconds(last / fps)}</span></span>`}
    <span class="push"></span>
    ${waiting && html`<span class="muted small">waiting for images</span>`}
    <span class="muted small">${fps ? `${number(fps)} fps` : `plays at ${player.fps} steps/s`}</span>
    <select aria-label="Speed" value=${String(speed)} onChange=${(event) => player.setSpeed(Number(event.target.value))}>
      ${SPEEDS.map((one) => html`<option value=${String(one)}>${one}×</option>`)}</select>
  </div>`;
}

/** The marks as a list; each jumps to its step. */
export function Marks({ player, marks }) {
  if (!marks.length) return null;
  return html`<ul class="marks" aria-label="Broken rules and signals">${marks.slice(0, MOST_MARKS).map((one, i) => html`<li key=${i}>
    <button class="badge ${classOf(one)}" disabled=${one.step == null} onClick=${() => player.seek(one.step)}>
      <bdi>${line(one.name, 60)}</bdi>${one.step != null && html` <span class="small">step ${number(one.step)}${one.stop > one.step + 1 && `–${number(one.stop - 1)}`}</span>`}</button>
    <bdi class="small muted">${line([one.field, one.detail].filter(Boolean).join(": "), 300)}</bdi></li>`)}
    ${marks.length > MOST_MARKS && html`<li class="muted">and ${count(marks.length - MOST_MARKS, "more mark")}</li>`}</ul>`;
}
