// The grid of moving thumbnails, and small pictures of episodes.
import { html, useEffect, useLoaded, useMedia, useRef, useState } from "./lib.js";
import { address, get } from "./source.js";
import { FlagButton } from "./flags.js";
import { count, duration, line, number } from "./text.js";

/** How many tiles fit across, and the height of their row. */
export function tilesOf(width, grid) {
  if (!grid) return { across: 1, height: 0 };
  const across = Math.max(2, Math.floor((width - 24) / 190));
  return { across, height: Math.round((width - 24) / across * 0.75) + 74 };
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

const FRAMES = 12, PAUSE = 160; // frames of a thumbnail, and milliseconds of each

/** An episode as a small picture: its first frame, or its last one if `ending`, and while `moving`, all of it. */
export function Film({ moving, ...rest }) {
  const still = useMedia("(prefers-reduced-motion: reduce)");
  const film = { ...rest, moving: moving && !still }, { camera } = rest;
  return camera.kind === "video" ? html`<${VideoFilm} ...${film} />` : html`<${ImageFilm} ...${film} />`;
}

function ImageFilm({ dataset, row, camera, height, moving, ending }) {
  const first = ending ? FRAMES - 1 : 0;
  const [frame, show] = useState(first);
  useEffect(() => {
    if (!moving) return show(first);
    const timer = setInterval(() => show((old) => (old + 1) % FRAMES), PAUSE);
    return () => clearInterval(timer);
  }, [moving, first]);
  const step = Math.round((frame * Math.max(0, (row.steps ?? 1) - 1)) / (FRAMES - 1));
  return html`<${Picture} dataset=${dataset} episode=${row.key} camera=${camera.path} step=${step} height=${height} />`;
}

/** The file may hold many episodes: the browser plays the range of this one. */
function VideoFilm({ dataset, row, camera, moving, ending }) {
  const video = useRef(null);
  const [failed, fail] = useState(false);
  const { data, error } = useLoaded((signal) => get("/api/videos", { dataset, key: row.key }, signal), [dataset, row.key]);
  const range = data?.find((one) => one.path === camera.path);
  useEffect(() => {
    const element = video.current;
    if (!element || !range) return undefined;
    const begin = () => { element.currentTime = ending && !moving ? Math.max(range.from, range.to - 0.02) : range.from + 0.001; };
    const repeat = () => { if (element.currentTime >= range.to) begin(); };
    if (moving) {
      if (ending) begin();
      element.play().catch(() => {});
    }
    else {
      element.pause();
      if (element.readyState) begin();
    }
    element.addEventListener("loadedmetadata", begin);
    element.addEventListener("timeupdate", repeat);
    return () => {
      element.removeEventListener("loadedmetadata", begin);
      element.removeEventListener("timeupdate", repeat);
    };
  }, [moving, range, ending]);
  if (failed || error || (data && !range)) return html`<span class="picture none" role="img" aria-label="no video">no video</span>`;
  if (!range) return html`<span class="picture bone"></span>`;
  return html`<video class="picture" ref=${video} src=${address("/video", { dataset, key: row.key, camera: camera.path })} muted playsinline
    preload="metadata" disablepictureinpicture tabindex="-1" aria-hidden="true" onError=${() => fail(true)}></video>`;
}

export function Tile({ position, row, dataset, current, flags, open, select, ending }) {
  const camera = mainCamera(dataset.cameras);
  const [pointed, point] = useState(false);
  const click = (event) => {
    select(position);
    if (row && !event.target.closest("button")) open(position);
  };
  return html`<div role="gridcell" class="tile" id=${`row-${position}`} aria-selected=${position === current} onClick=${click}
    onMouseEnter=${() => point(true)} onMouseLeave=${() => point(false)}>
    ${row ? html`<${Film} key=${row.key} dataset=${dataset.id} row=${row} camera=${camera} height="192" moving=${pointed} ending=${ending} />` : html`<span class="picture bone"></span>`}
    <div class="bar"><span class="clamp" title=${line(row?.instruction)}><bdi>${row ? line(row.instruction ?? "") || `episode ${number(row.index)}` : ""}</bdi></span>
      ${row && html`<${FlagButton} flags=${flags} row=${row} />`}</div>
    <div class="about muted small"><span>#${number(row?.index ?? position)}${row?.steps != null && ` · ${count(row.steps, "step")}${dataset.fps ? `, ${duration(row.steps / dataset.fps)}` : ""}`}</span>
      ${row?.rule && html`<span class="badge bad"><bdi>${line(row.rule, 40)}</bdi></span>`}</div>
  </div>`;
}
