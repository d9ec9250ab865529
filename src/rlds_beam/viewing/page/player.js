// The clock of an episode: which step is shown, and how it goes on while playing.
import { Store, clamp } from "./lib.js";

export const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4, 8];

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
