// The numeric fields of an episode as curves below its frames, on one axis of time. Click or drag to seek, shift + drag to zoom.
import { Store, clamp, colorOf, html, indexOf, line, number, useEffect, useMemo, useRef, useSize, useState, useStore, useTheme } from "./lib.js";
import { Picture } from "./cameras.js";
import { classOf } from "./player.js";

const OPEN = 6; // curves shown at first
const COLORS = 8;
const heightOf = (curve) => (curve.labels.length > COLORS ? 200 : 128);
const GUTTER = 52, RIGHT = 16; // pixels beside a plot: --gutter in the style sheet

/** What all curves of an episode share: the zoomed range, and the step under the pointer. */
export class View extends Store {
  hover = null;
  beside = null; // the curves of the episode next to this one: the same fields have the same vertical range

  constructor(last) {
    super();
    this.own = Math.max(1, last);
    this.whole = [0, this.own];
    this.range = this.whole;
  }

  /** Makes room for an episode that ends at `last`, with these curves, next to this one. */
  extend(last, curves = null) {
    this.beside = curves;
    this.whole = [0, Math.max(this.own, last)];
    this.zoom(...this.whole);
  }

  zoom(low, high) {
    const span = clamp(high - low, Math.min(4, this.whole[1]), this.whole[1]);
    const start = clamp((low + high - span) / 2, 0, this.whole[1] - span);
    this.range = [start, start + span];
    this.emit();
  }

  scale(by, center = (this.range[0] + this.range[1]) / 2) {
    const [low, high] = this.range;
    this.zoom(center - (center - low) * by, center + (high - center) * by);
  }

  point(step) {
    if (this.hover === step) return;
    this.hover = step;
    this.emit();
  }
}

const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 36000];
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6];

/** The axis of time: in seconds if the rate is known, otherwise in steps. */
const timeAxis = (fps) => (fps ? { incrs: SECONDS.map((one) => one * fps), values: (_, ticks) => ticks.map((tick) => `${number(tick / fps)} s`) } : { incrs: STEPS });

const isConstant = (curve) => curve.values.every((values) => values.every((one) => one === values[0]));

export function Curves({ episode, dataset, player, view, frames, bar = true }) {
  const [open, setOpen] = useState(() => {
    const marked = new Set(episode.marks.map((one) => one.field));
    const changing = episode.curves.filter((one) => marked.has(one.path) || !isConstant(one));
    return new Set(changing.slice(0, OPEN).map((one) => one.path));
  });
  const fps = episode.fps ?? dataset.fps;
  const shown = episode.curves.filter((one) => open.has(one.path));
  const toggle = (path) => setOpen((before) => {
    const after = new Set(before);
    if (!after.delete(path)) after.add(path);
    return after;
  });
  if (!episode.curves.length) return html`<p class="empty">No numeric fields.</p>`;
  return html`<div class="curves">
    ${bar && html`<${ZoomBar} view=${view} />`}
    <${Strips} ...${{ dataset, episode, player, view, frames }} />
    ${episode.curves.map((curve) => html`<section key=${curve.path} class="curve">
      <h3><button type="button" class="fold" aria-expanded=${open.has(curve.path)} onClick=${() => toggle(curve.path)}><bdi>${line(curve.path, 160)}</bdi></button>
        <span class="muted small">${curve.labels.length > 1 || curve.left_out ? `${curve.labels.length + (curve.left_out || 0)} dimensions` : ""}
          ${curve.left_out ? `, the first ${curve.labels.length} shown` : ""}${isConstant(curve) ? ` constant: ${curve.values.slice(0, 8).map(([one]) => number(one)).join(", ")}` : ""}</span></h3>
      ${open.has(curve.path) && html`<${Chart} ...${{ curve, player, view, fps, marks: marksOn(curve, episode, shown[0] === curve) }} />`}
    </section>`)}
  </div>`;
}

/** Marks of a curve: strong on its field and named there; on all curves if no curve is its field's, and named on the first. */
function marksOn(curve, episode, first) {
  return episode.marks.filter((one) => one.step != null).map((one) => {
    const here = one.field === curve.path, homeless = !episode.curves.some((other) => other.path === one.field);
    return { ...one, strong: here || homeless, named: here || (first && homeless) };
  });
}

const STRIPS = 3, STRIP_HEIGHT = 56, STRIP_GAP = 2, MOST_PIXELS = 4e6;

/** Frames of the cameras above the curves, each at its time; a click goes there. */
function Strips(props) {
  const cameras = props.episode.cameras.filter((one) => one.kind === "image" && one.frames > 0 && (one.width ?? 0) * (one.height ?? 0) <= MOST_PIXELS);
  return cameras.length > 0 && html`<${StripRows} ...${props} cameras=${cameras.slice(0, STRIPS)} />`;
}

function StripRows({ dataset, episode, player, view, frames, cameras }) {
  const [box, width] = useSize();
  const { range } = useStore(view);
  const { step } = useStore(player);
  const seen = useRef(false);
  useStore(frames);
  seen.current ||= frames.ready(step); // the player's frames are fetched first
  const [low, high] = range, inner = width - GUTTER - RIGHT;
  const x = (step - low) / (high - low);
  const height = cameras.length * (STRIP_HEIGHT + STRIP_GAP) - STRIP_GAP; // kept free: the curves below do not move when frames arrive
  return html`<div class="strips" ref=${box} style=${{ gap: `${STRIP_GAP}px`, minHeight: `${height}px` }}>${inner > 0 && seen.current && cameras.map((camera) => {
    const ratio = camera.width && camera.height ? clamp(camera.width / camera.height, 0.5, 3) : 4 / 3;
    const count = Math.max(1, Math.min(Math.floor(inner / (STRIP_HEIGHT * ratio)), Math.floor(high - low) + 1));
    const at = Array.from({ length: count }, (_, i) => Math.min(Math.round(low + ((i + 0.5) / count) * (high - low)), camera.frames - 1));
    return html`<div class="strip" key=${camera.path} title=${line(camera.path, 120)} style=${{ height: `${STRIP_HEIGHT}px` }}>${at.map((one, i) => html`<button type="button" key=${i} tabindex="-1"
      aria-label=${`Step ${one}`} onClick=${() => player.seek(one)}><${Picture} dataset=${dataset.id} episode=${episode.key} camera=${camera.path} step=${one} height="96" version=${episode.version} /></button>`)}</div>`;
  })}${inner > 0 && x >= 0 && x <= 1 && html`<i class="playhead" style=${{ transform: `translateX(${GUTTER + x * inner}px)` }}></i>`}</div>`;
}

export function ZoomBar({ view }) {
  const { range, whole } = useStore(view);
  const zoomed = range[1] - range[0] < whole[1];
  return html`<div class="bar small muted zoom"><span>Click or drag to seek, Shift + drag to zoom</span><span class="push"></span>
    <button aria-label="Zoom in" onClick=${() => view.scale(0.5)}>+</button><button aria-label="Zoom out" disabled=${!zoomed} onClick=${() => view.scale(2)}>−</button>
    <button disabled=${!zoomed} onClick=${() => view.zoom(...whole)}>Whole episode</button></div>`;
}

function Chart({ curve, player, view, marks, fps }) {
  const [box, width] = useSize();
  const [off, setOff] = useState(() => new Set());
  const theme = useTheme();
  const [near, point] = useState(null); // the dimension under the pointer
  const plot = useRef(null);
  const head = useRef(null);
  const data = useMemo(() => [curve.steps ?? Array.from(curve.values[0] ?? [], (_, i) => i), ...curve.values], [curve]);
  useEffect(() => {
    if (!width) return;
    const chart = new uPlot(optionsOf(curve, { player, view, marks, fps, width, off, point }), data, box.current);
    plot.current = chart;
    head.current = document.createElement("div");
    head.current.className = "playhead";
    chart.over.append(head.current);
    const place = () => {
      const [low, high] = view.range;
      const x = (player.step - low) / (high - low);
      head.current.hidden = x < 0 || x > 1;
      head.current.style.transform = `translateX(${(x * chart.bbox.width) / devicePixelRatio}px)`;
    };
    chart.hooks.draw = [place];
    let { beside } = view;
    const zoom = () => {
      const { min, max } = chart.scales.x;
      if (beside !== view.beside) chart.redraw(); // with another vertical range
      beside = view.beside;
      if (min !== view.range[0] || max !== view.range[1]) chart.setScale("x", { min: view.range[0], max: view.range[1] });
      place();
    };
    zoom();
    seekOn(chart, player, view); // removed with the chart
    const stops = [player.subscribe(place), view.subscribe(zoom)];
    return () => {
      for (const stop of stops) stop();
      chart.destroy();
    };
  }, [data, width > 0, theme, player, view]);
  useEffect(() => {
    if (width) plot.current?.setSize({ width, height: heightOf(curve) });
  }, [width]);
  const toggle = (i, only) => {
    const all = curve.labels.map((_, j) => j);
    let after = new Set(off);
    if (only) after = off.size === all.length - 1 && !off.has(i) ? new Set() : new Set(all.filter((j) => j !== i));
    else if (!after.delete(i)) after.add(i);
    setOff(after);
    for (const j of all) if (after.has(j) !== off.has(j)) plot.current?.setSeries(j + 1, { show: !after.has(j) });
  };
  const lift = (i) => {
    point(i);
    plot.current?.setSeries(i === null ? null : i + 1, { focus: true });
  };
  return html`<div class="chart" ref=${box} role="img" aria-label=${`Curve of ${line(curve.path, 80)}`} style=${{ height: `${heightOf(curve)}px` }}></div>
    <${Legend} ...${{ curve, player, view, off, toggle, near, lift }} />`;
}

function Legend({ curve, player, view, off, toggle, near, lift }) {
  const { step } = useStore(player);
  const { hover } = useStore(view);
  const at = indexOf(curve, hover ?? step);
  return html`<ul class="legend" onMouseLeave=${() => lift(null)}>${curve.labels.map((label, i) => html`<li key=${i}><button type="button" aria-pressed=${!off.has(i)} class="series-${i % COLORS} ${i >= COLORS ? "dashed" : ""} ${near === i ? "near" : ""}" onMouseEnter=${() => lift(i)}
    title=${`${line(label, 100)}: click to hide or show, Shift + click to show it alone`} onClick=${(event) => toggle(i, event.shiftKey)}>
    <i></i><bdi>${line(label, 40)}</bdi> <b>${number(curve.values[i]?.[at])}</b></button></li>`)}</ul>`;
}

function optionsOf(curve, { player, view, marks, fps, width, off, point }) {
  const axis = { stroke: colorOf("muted"), grid: { stroke: colorOf("hair"), width: 1 }, ticks: { stroke: colorOf("line"), size: 4 }, font: "11px system-ui" };
  return {
    width, height: heightOf(curve), legend: { show: false }, padding: [6, RIGHT, 0, 0], focus: { alpha: 0.25 },
    scales: { x: { time: false, auto: false, range: () => view.range }, y: { range: (chart, low, high) => rangeOf(...sharedRange(chart, curve, view.beside, low, high)) } },
    axes: [{ ...axis, size: 24, ...timeAxis(fps) }, { ...axis, size: GUTTER, space: 22, values: (_, ticks) => ticks.map((v) => number(v)) }],
    series: [{}, ...curve.labels.map((_, i) => ({
      show: !off.has(i), stroke: colorOf(`series-${i % COLORS}`), width: 1.5, dash: i >= COLORS ? [5, 3] : undefined,
      points: { show: (curve.values[i]?.length ?? 0) < 3 || undefined, size: 5 }, spanGaps: false,
    }))],
    cursor: {
      y: false, focus: { prox: curve.labels.length > 1 ? 24 : -1 }, drag: { x: true, y: false, setScale: false },
      bind: {
        mousedown: (_, __, handle) => (event) => event.shiftKey && handle(event),
        dblclick: () => () => view.zoom(...view.whole),
      },
    },
    hooks: {
      drawClear: [(chart) => drawMarks(chart, marks)],
      setSeries: [(_, i) => point(i > 0 ? i - 1 : null)],
      setCursor: [(chart) => {
        const { left, idx } = chart.cursor;
        view.point(left >= 0 && idx != null && chart.over.matches(":hover") ? stepAt(curve, idx) : chart.over.matches(":hover") ? null : view.hover);
      }],
      setSelect: [(chart) => {
        const { left, width: wide } = chart.select;
        if (wide > 4) view.zoom(chart.posToVal(left, "x"), chart.posToVal(left + wide, "x"));
        chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  };
}

/** The lowest and highest value; if the episode next to this one has the field, those of both. */
function sharedRange(chart, curve, beside, low, high) {
  const other = beside?.find((one) => one.path === curve.path && one.values.length === curve.values.length);
  if (!other) return [low, high];
  const values = [curve, other].flatMap((one) => one.values.filter((_, i) => chart.series[i + 1].show).flat());
  return values.reduce(([a, b], v) => (v === null ? [a, b] : [Math.min(a ?? v, v), Math.max(b ?? v, v)]), [low, high]);
}

/** The vertical range: a margin around the values; constant ones are in the middle. */
function rangeOf(low, high) {
  if (low === null) return [0, 1];
  const margin = high > low ? 0.06 * (high - low) : Math.max(1e-6, Math.abs(low) * 0.5) || 1;
  return low === 0 && high === 0 ? [-1, 1] : [low - margin, high + margin];
}

const stepAt = (curve, index) => (curve.steps ? curve.steps[index] : index);

/** Bands behind the curves, at the steps of rules and signals, with their names. */
function drawMarks(chart, marks) {
  const { ctx, bbox } = chart, scale = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `${11 * scale}px system-ui`;
  ctx.textBaseline = "top";
  let row = 0;
  for (const one of marks) {
    const left = chart.valToPos(one.step, "x", true);
    const right = chart.valToPos(Math.max(one.step, (one.stop ?? one.step) - 1), "x", true);
    ctx.fillStyle = colorOf(classOf(one));
    ctx.globalAlpha = one.strong ? 0.3 : 0.1;
    ctx.fillRect(left - 2, bbox.top, right - left + 4, bbox.height);
    if (!one.named) continue;
    const name = line(one.name, 60), space = 5 * scale;
    ctx.globalAlpha = 1;
    ctx.textAlign = right + space + ctx.measureText(name).width < bbox.left + bbox.width ? "left" : "right";
    ctx.fillText(name, ctx.textAlign === "left" ? right + space : left - space, bbox.top + 13 * scale * (row++ % 6));
  }
  ctx.restore();
}

/** Seeks while the pointer is pressed on a chart. */
function seekOn(chart, player, view) {
  const { over } = chart;
  const seek = (event) => {
    const box = over.getBoundingClientRect();
    const [low, high] = view.range;
    player.seek(low + ((event.clientX - box.left) / box.width) * (high - low));
  };
  const down = (event) => {
    if (event.button || event.shiftKey) return;
    over.setPointerCapture(event.pointerId);
    seek(event);
  };
  const move = (event) => over.hasPointerCapture(event.pointerId) && seek(event);
  const leave = () => view.point(null);
  const wheel = (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = over.getBoundingClientRect();
    const [low, high] = view.range;
    view.scale(event.deltaY > 0 ? 1.25 : 0.8, low + ((event.clientX - box.left) / box.width) * (high - low));
  };
  over.addEventListener("pointerdown", down);
  over.addEventListener("pointermove", move);
  over.addEventListener("pointerleave", leave);
  over.addEventListener("wheel", wheel, { passive: false });
}
