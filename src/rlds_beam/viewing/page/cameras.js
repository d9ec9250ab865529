// The cameras of an episode, all at the player's step, and small pictures of episodes.
import { Store, html, line, useEffect, useLayoutEffect, useLoaded, useMedia, useRef, useState, useStore } from "./lib.js";
import { Dialog } from "./dialogs.js";
import { Timeline, Transport } from "./player.js";
import { address, datasets, get, loadImage } from "./source.js";

export function Cameras({ dataset, episode, player, frames, enlarge }) {
  if (!episode.cameras.length) return null;
  const sizes = new Map(datasets.find(dataset)?.cameras.map((one) => [one.path, one]));
  const shape = ({ path, width, height }) => `${width || sizes.get(path)?.width || 4} / ${height || sizes.get(path)?.height || 3}`;
  const { cameras } = episode;
  const names = cameras.map((one) => one.path.split("/").at(-1));
  return html`<div class="cameras" data-count=${cameras.length} data-many=${cameras.length > 4 || undefined}>${cameras.map((camera, i) => html`<figure key=${camera.path} class="camera">
    <div class="screen" style=${{ aspectRatio: shape(camera) }} onDblClick=${enlarge}>
      ${camera.kind === "video" ? html`<${VideoCamera} ...${{ dataset, episode, camera, player }} />`
        : html`<${ImageCamera} ...${{ camera, player, frames }} />`}
    </div>
    <figcaption><bdi class="clip" title=${line(camera.path, 120)}>${line(names.indexOf(names[i]) === names.lastIndexOf(names[i]) ? names[i] : camera.path, 120)}</bdi>
      ${enlarge && html`<button type="button" class="icon small" aria-label="Large frames" title="Large frames (e)" onClick=${enlarge}>⤢</button>`}</figcaption>
  </figure>`)}</div>`;
}

/** All cameras as large as the window, with the player: step by step, all in sync. */
export function LargeFrames({ onClose, onKey, ...parts }) {
  const { player, episode, fps } = parts;
  return html`<${Dialog} title="Frames" class="large" onClose=${onClose} onKeyDown=${(event) => onKey(event) && event.preventDefault()}>
    <${Cameras} ...${parts} enlarge=${null} />
    <${Timeline} player=${player} marks=${episode.marks} /><${Transport} player=${player} fps=${fps} /></${Dialog}>`;
}

function ImageCamera({ camera, player, frames }) {
  const { step } = useStore(player);
  useStore(frames);
  const canvas = useRef(null);
  const drawn = useRef(null);
  const missing = step >= camera.frames;
  const one = missing ? { error: `There is no image at step ${step}: this camera has ${camera.frames}.` } : frames.get(camera, step);
  useLayoutEffect(() => {
    if (!one?.bitmap) return;
    canvas.current.dataset.step = step;
    if (drawn.current === one.bitmap) return;
    const { width, height } = one.bitmap;
    const element = canvas.current;
    if (element.width !== width || element.height !== height) Object.assign(element, { width, height });
    element.getContext("2d", { alpha: true }).drawImage(one.bitmap, 0, 0);
    drawn.current = one.bitmap;
  });
  return html`<canvas ref=${canvas} role="img" aria-label=${`${line(camera.path, 80)}, step ${step}`} hidden=${Boolean(one?.error)}
      class=${camera.width < 200 && one?.bitmap instanceof ImageBitmap ? "pixels" : ""}></canvas>
    ${one?.error && html`<p class="broken" role="img"><span aria-hidden="true">⊘</span><bdi>${line(one.error, 200)}</bdi></p>`}
    ${one?.bitmap && one.step !== step && html`<span class="nearest">step ${one.step}</span>`}
    ${!one && html`<span class="busy" aria-hidden="true"></span>`}`;
}

const LATE = 0.12; // seconds a playing video may be off

function VideoCamera({ dataset, episode, camera, player }) {
  const video = useRef(null);
  const [error, fail] = useState(null);
  useEffect(() => {
    const element = video.current;
    const follow = () => {
      const time = camera.from + (Math.min(player.step, camera.frames - 1) + 0.5) / player.fps;
      if (player.playing && !player.waiting) {
        element.playbackRate = Math.min(16, Math.max(0.0625, player.speed));
        if (element.paused) element.play().catch(() => {});
        if (Math.abs(element.currentTime - time) > LATE * Math.max(1, player.speed)) element.currentTime = time;
      } else {
        element.pause();
        if (!element.seeking && Math.abs(element.currentTime - time) > 0.25 / player.fps) element.currentTime = time;
      }
    };
    const stop = player.subscribe(follow);
    element.addEventListener("seeked", follow); // the step may have changed meanwhile
    element.addEventListener("loadedmetadata", follow);
    follow();
    return () => {
      stop();
      element.removeEventListener("seeked", follow);
      element.removeEventListener("loadedmetadata", follow);
      element.removeAttribute("src");
      element.load();
    };
  }, [player, camera]);
  const src = address("/video", { dataset, key: episode.key, camera: camera.path });
  return html`<video ref=${video} src=${src} muted playsinline preload="auto" disablepictureinpicture tabindex="-1" hidden=${Boolean(error)}
      aria-label=${line(camera.path, 80)} onError=${() => fail("This video does not play in this browser, or is missing.")}></video>
    ${error && html`<p class="broken" role="img"><span aria-hidden="true">⊘</span>${error}</p>`}`;
}

const MOST_PIXELS = 40e6; // held at a time: 160 MB
const AT_ONCE = 6;
const AHEAD = 12; // steps that are fetched before the player needs them

/** Images of an episode's cameras: fetched ahead of the player, decoded off the main thread, held within a limit. */
export class Frames extends Store {
  #held = new Map(); // name -> {bitmap | error, pixels}, least recently used first
  #loading = new Map(); // name -> AbortController
  #wanted = [];
  #pixels = 0;

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

  /** Fetches the images of a step, then those of the following ones. What is no longer wanted is cancelled. */
  want(step, forward = true, stride = 1) {
    const steps = [step];
    for (let i = 1; i <= AHEAD; i++) steps.push(forward ? step + i * stride : step - i);
    this.#wanted = steps.flatMap((at) => this.cameras.filter((camera) => at >= 0 && at < camera.frames).map((camera) => [`${at} ${camera.path}`, camera, at]));
    const names = new Set(this.#wanted.map(([name]) => name));
    for (const [name, controller] of this.#loading) if (!names.has(name)) controller.abort();
    for (const name of names) {
      const one = this.#held.get(name);
      if (one) {
        this.#held.delete(name);
        this.#held.set(name, one);
      }
    }
    this.#fetch();
  }

  close() {
    this.#wanted = [];
    for (const controller of this.#loading.values()) controller.abort();
    for (const one of this.#held.values()) one.bitmap?.close?.();
    this.#held.clear();
  }

  #fetch() {
    for (const [name, camera, step] of this.#wanted) {
      if (this.#loading.size >= Math.max(AT_ONCE, this.cameras.length)) return;
      if (!this.#held.has(name) && !this.#loading.has(name)) this.#load(name, camera, step);
    }
  }

  async #load(name, camera, step) {
    const controller = new AbortController();
    this.#loading.set(name, controller);
    let one;
    try {
      one = await loadImage({ dataset: this.dataset, key: this.key, camera: camera.path, step, v: this.version }, controller.signal);
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
      if (this.#pixels <= MOST_PIXELS || this.#held.size <= 3 * this.cameras.length) return;
      this.#held.delete(name);
      this.#pixels -= one.pixels;
      one.bitmap?.close?.();
    }
  }
}

/** The camera that small pictures are from: images rather than videos, and in color, if there are any. */
export const mainCamera = (cameras) => {
  const color = cameras.filter((one) => !/depth/i.test(one.path));
  return color.find((one) => one.kind === "image") ?? color[0] ?? cameras[0];
};

/** A small picture of a step, with a placeholder if there is none. */
export function Picture({ dataset, episode, camera, step, height, version = "" }) {
  const [failed, fail] = useState(null);
  const src = address("/image", { dataset, key: episode, camera, step, height, v: version });
  if (failed === src) return html`<span class="picture none" role="img" aria-label="no image">no image</span>`;
  return html`<img class="picture" src=${src} alt="" loading="lazy" decoding="async" fetchpriority="low" onError=${() => fail(src)} />`;
}

/** An episode as a small picture: its first frame, or its last one if `ending`, and while `moving`, all of it. */
export function Film({ moving, ...rest }) {
  const still = useMedia("(prefers-reduced-motion: reduce)");
  const Kind = rest.camera.kind === "video" ? VideoFilm : ImageFilm;
  return html`<${Kind} ...${rest} moving=${moving && !still} />`;
}

const FILM_FRAMES = 12, FRAME_MILLISECONDS = 160;

function ImageFilm({ dataset, row, camera, moving, ending }) {
  const first = ending ? FILM_FRAMES - 1 : 0;
  const [frame, show] = useState(first);
  useEffect(() => {
    if (!moving) return show(first);
    const timer = setInterval(() => show((old) => (old + 1) % FILM_FRAMES), FRAME_MILLISECONDS);
    return () => clearInterval(timer);
  }, [moving, first]);
  const step = Math.round((frame * Math.max(0, (row.steps ?? 1) - 1)) / (FILM_FRAMES - 1));
  return html`<${Picture} dataset=${dataset} episode=${row.key} camera=${camera.path} step=${step} height="96" />`;
}

/** The file may hold many episodes: the browser plays the range of this one. */
function VideoFilm({ dataset, row, camera, moving }) {
  const video = useRef(null);
  const [failed, fail] = useState(false);
  const { data, error } = useLoaded((signal) => get("/api/videos", { dataset, key: row.key }, signal), [dataset, row.key]);
  const range = data?.find((one) => one.path === camera.path);
  useEffect(() => {
    if (moving) video.current?.play().catch(() => {});
    else if (range && video.current) {
      video.current.pause();
      video.current.currentTime = range.from;
    }
  }, [moving, range]);
  if (failed || error || (data && !range)) return html`<span class="picture none" role="img" aria-label="no video">no video</span>`;
  if (!range) return html`<span class="picture bone"></span>`;
  const src = `${address("/video", { dataset, key: row.key, camera: camera.path })}#t=${range.from},${range.to}`;
  return html`<video class="picture" ref=${video} src=${src} muted playsinline preload="metadata" disablepictureinpicture tabindex="-1"
    aria-hidden="true" onError=${() => fail(true)}></video>`;
}
