// Images of an episode's cameras: fetched ahead of the player, decoded off the main thread, held within a limit.
import { Store } from "./lib.js";
import { loadImage } from "./source.js";

const MOST_PIXELS = 40e6; // held at a time: 160 MB
const MOST_IMAGES = 400;
const AT_ONCE = 6;
const AHEAD_BYTES = 24e6; // of files on their way
const MOST_AHEAD = 24;

export class Frames extends Store {
  #held = new Map(); // name -> {bitmap | error, pixels}, least recently used first
  #loading = new Map(); // name -> AbortController
  #wanted = [];
  #pixels = 0;
  #average = 100e3; // bytes of an image, as seen so far

  constructor(dataset, episode) {
    super();
    this.dataset = dataset;
    this.key = episode.key;
    this.version = episode.version;
    this.cameras = episode.cameras.filter((one) => one.kind === "image" && one.frames > 0);
  }

  /** {bitmap} or {error}; undefined while it is on its way. */
  get = (camera, step) => this.#held.get(`${step} ${camera.path}`);

  ready = (step) => this.cameras.every((camera) => step >= camera.frames || this.get(camera, step));

  /** How many steps are fetched ahead: fewer if images are large. */
  get ahead() {
    return Math.max(1, Math.min(MOST_AHEAD, Math.floor(AHEAD_BYTES / this.#average / Math.max(1, this.cameras.length))));
  }

  /** Fetches the images of a step, then those of the following ones. What is no longer wanted is cancelled. */
  want(step, forward = true, stride = 1) {
    const wanted = [];
    const add = (at) => {
      for (const camera of this.cameras)
        if (at >= 0 && at < camera.frames) wanted.push([`${at} ${camera.path}`, camera, at]);
    };
    add(step);
    for (let i = 1; i <= this.ahead; i++) add(forward ? step + i * stride : step - i);
    if (this.ahead > 2) add(forward ? step - 1 : step + 1);
    const names = new Set(wanted.map(([name]) => name));
    for (const [name, controller] of this.#loading) if (!names.has(name)) controller.abort();
    for (const name of names) {
      const one = this.#held.get(name);
      if (one) {
        this.#held.delete(name);
        this.#held.set(name, one);
      }
    }
    this.#wanted = wanted;
    this.#fetch();
  }

  close() {
    this.#wanted = [];
    for (const controller of this.#loading.values()) controller.abort();
    for (const one of this.#held.values()) one.bitmap?.close?.();
    this.#held.clear();
  }

  #fetch() {
    const most = Math.max(this.cameras.length, Math.min(AT_ONCE, Math.ceil(AHEAD_BYTES / this.#average)));
    for (const [name, camera, step] of this.#wanted) {
      if (this.#loading.size >= most) return;
      if (!this.#held.has(name) && !this.#loading.has(name)) this.#load(name, camera, step);
    }
  }

  async #load(name, camera, step) {
    const controller = new AbortController();
    this.#loading.set(name, controller);
    let one;
    try {
      const query = { dataset: this.dataset, key: this.key, camera: camera.path, step, v: this.version };
      one = await loadImage(query, controller.signal);
      if (one.size) this.#average = 0.8 * this.#average + 0.2 * one.size;
    } catch (error) {
      if (!controller.signal.aborted) one = { error: error.message, pixels: 0 };
    } finally {
      this.#loading.delete(name);
    }
    if (controller.signal.aborted) one?.bitmap?.close?.();
    else {
      this.#held.set(name, one);
      this.#pixels += one.pixels;
      this.#forget();
      this.emit();
    }
    this.#fetch();
  }

  #forget() {
    for (const [name, one] of this.#held) {
      if (this.#held.size <= MOST_IMAGES && this.#pixels <= MOST_PIXELS) return;
      if (this.#held.size <= 3 * this.cameras.length) return;
      this.#held.delete(name);
      this.#pixels -= one.pixels;
      one.bitmap?.close?.();
    }
  }
}
