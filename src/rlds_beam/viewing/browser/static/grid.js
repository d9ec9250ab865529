// The grid of first frames.
import { html, useState } from "./lib.js";
import { address } from "./api.js";
import { FlagButton } from "./list.js";
import { count, line, number, shortKey } from "./text.js";

/** How many tiles fit across, and the height of their row. */
export function tilesOf(width, grid) {
  if (!grid) return { across: 1, height: 0 };
  const across = Math.max(2, Math.floor((width - 24) / 190));
  return { across, height: Math.round((width - 24) / across * 0.75) + 54 };
}

/** The camera that small pictures are from: images in color, if there are any. */
export const mainCamera = (cameras) => {
  const images = cameras.filter((one) => one.kind === "image");
  return images.find((one) => !/depth/i.test(one.path)) ?? images[0];
};

/** A small picture of a step, with a placeholder if there is none. */
export function Picture({ dataset, episode, camera, step, height, version = "" }) {
  const [failed, fail] = useState(null);
  const src = address("/image", { dataset, key: episode, camera, step, height, v: version });
  if (failed === src) return html`<span class="picture none" role="img" aria-label="no image">no image</span>`;
  return html`<img class="picture" src=${src} alt="" loading="lazy" decoding="async" onError=${() => fail(src)} />`;
}

export function Tile({ position, row, dataset, current, flags, open, select }) {
  const camera = mainCamera(dataset.cameras);
  const click = (event) => {
    select(position);
    if (row && !event.target.closest("button")) open(position);
  };
  return html`<div role="gridcell" class="tile" id=${`row-${position}`} aria-selected=${position === current} onClick=${click}>
    ${row ? html`<${Picture} dataset=${dataset.id} episode=${row.key} camera=${camera.path} step="0" height="192" />` : html`<span class="picture bone"></span>`}
    <div class="bar"><span class="clip"><bdi>${row ? line(row.instruction ?? "") || shortKey(row.key) : ""}</bdi></span>
      ${row && html`<${FlagButton} flags=${flags} row=${row} />`}</div>
    <div class="about muted small"><span>#${number(row?.index ?? position)}${row?.steps != null && ` · ${count(row.steps, "step")}`}</span>
      ${row?.rule && html`<span class="badge bad"><bdi>${line(row.rule, 40)}</bdi></span>`}</div>
  </div>`;
}
