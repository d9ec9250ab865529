// The cameras of an episode, all at the player's step.
import { html, useEffect, useLayoutEffect, useRef, useState, useStore } from "./lib.js";
import { Dialog } from "./dialogs.js";
import { address } from "./source.js";
import { datasets } from "./datasets.js";
import { line } from "./text.js";
import { Timeline, Transport } from "./timeline.js";

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
