// The scrubber, the buttons of the player, and the marks of rules and signals.
import { html, useStore } from "./lib.js";
import { SPEEDS } from "./player.js";
import { count, line, number, seconds } from "./text.js";

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
