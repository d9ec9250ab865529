// The page of a report: a list of contents, the summary of its dataset, and its episodes in the viewer of the browser.
import { Text, html, line, number, render, useEffect, useLayoutEffect, useRef, useState, useStore } from "./lib.js";
import { Command, Copy, FlagButton, FlagCount, ThemeButton, flagsOf } from "./dialogs.js";
import { datasets, root as data, sourceOf } from "./embedded.js";
import { Code, Conversion, Section, Totals, openBlocks, sectionsOf, stepsText, timeOf } from "./summary.js";
import { Viewer } from "./viewer.js";

const part = data.dataset;
const opened = new Map(); // the id of an episode -> shows its viewer

/** An episode. Its viewer is drawn when it comes near the window: a report of a hundred opens at once. */
function Episode({ row }) {
  const { episode } = row, dataset = datasets.find(row.dataset), flags = useStore(flagsOf(dataset));
  const article = useRef(null);
  const [live, open] = useState(false);
  const [tab, turn] = useState("curves");
  const [beside, choose] = useState(null);
  useEffect(() => {
    const element = article.current;
    const near = new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && open(true), { rootMargin: "600px" });
    near.observe(element);
    opened.set(row.id, () => open(true));
    return () => near.disconnect();
  }, []);
  return html`<article class="episode" id=${row.id} aria-label=${row.named} tabindex="-1" ref=${article} data-shown=${live ? "" : undefined}>
    <header><div class="heading"><h3 class="key" title=${line(row.key)}><bdi>${row.named}</bdi><${Copy} text=${row.key} what="the key" />
        <${FlagButton} flags=${flags} row=${row} tab=${0} /></h3>
      <p class="line">${episode.steps > 0 && html`<span>${number(episode.steps)} steps${timeOf(episode.steps, episode.fps)}</span>`}${episode.total != null && html`<span>return ${number(episode.total)}</span>`}</p></div>
      ${episode.instruction && html`<p class="said clamp"><${Text} value=${episode.instruction} /></p>`}
      ${!episode.steps && episode.marks.length > 0 && html`<ul class="tags">${episode.marks.map((mark) => html`<li class="tag ${mark.kind === "rule" ? "bad" : "warn"}"><b>${mark.name}</b>
        ${mark.step != null && ` at step ${stepsText(mark.step, mark.stop)}`} <${Text} value=${mark.detail} /></li>`)}</ul>`}</header>
    ${episode.note && html`<p class=${episode.curves.length || episode.cameras.length ? "small muted" : "note warn"}><${Code} text=${episode.note} /></p>`}
    ${episode.steps > 0 && (live ? html`<div><${Viewer} ...${{ dataset, episode: { ...episode, index: row.index }, tab, beside, step: 0, keys: article.current }} onTab=${turn} onBeside=${choose} /></div>`
      : html`<div class="still"></div>`)}
  </article>`;
}

const episodes = (some, open) => some.length > 0 && html`<div class="episodes">${some.slice(0, open).map((row) => html`<${Episode} key=${row.id} row=${row} />`)}
  ${some.length > open && html`<details class="block"><summary>${number(some.length - open)} more</summary>
    <div class="episodes">${some.slice(open).map((row) => html`<${Episode} key=${row.id} row=${row} />`)}</div></details>`}</div>`;

/** An episode as a film, which plays under the pointer. */
function Cell({ cell }) {
  const id = part.anchor(cell.key), [width, height] = cell.size;
  const film = html`<svg class="film" viewBox=${`0 0 ${width / 10} ${height}`} role="img" aria-label=${line(cell.camera, 80) + (cell.film.fault ? " (damaged image)" : "")}>
    <image href=${sourceOf(cell.film)} width=${width} height=${height} preserveAspectRatio="none" /></svg>`;
  return html`<li>${id ? html`<a class="play" href=${`#${id}`} aria-label=${part.nameOf(cell.key)}>${film}</a>` : html`<div class="play" tabindex="0">${film}</div>`}
    <p class="key" title=${line(cell.key)}><bdi>${part.nameOf(cell.key)}</bdi></p>
    <p>${number(cell.steps)} steps${timeOf(cell.steps, part.facts.fps)} ${cell.marks.slice(0, 2).map((mark) => html`<span class="tag ${mark.kind === "rule" ? "bad" : "warn"}">${mark.name}</span> `)}</p>
    ${cell.instruction && html`<p class="said clamp"><${Text} value=${cell.instruction} /></p>`}</li>`;
}

const Cells = ({ some }) => html`<ul class="gallery">${some.map((cell) => html`<${Cell} cell=${cell} />`)}</ul>`;

const Gallery = () => html`<${Cells} some=${part.grid.slice(0, 12)} />
  ${part.grid.length > 12 && html`<details class="block"><summary>${number(part.grid.length - 12)} more</summary><${Cells} some=${part.grid.slice(12)} /></details>`}`;

const { facts } = part;
const samples = part.samples.length && { id: "samples", title: "Sample episodes", count: part.samples.length, Content: () => episodes(part.shown.samples, 4),
    lede: `${facts.episodes ? "Episodes" : "Records"} chosen at random: play them, or go step by step with the arrow keys; drag over the curves; compare two side by side.` };
const sections = [
  part.grid.length && { id: "frames", title: "Episodes", count: part.grid.length, Content: Gallery,
    lede: `Point at an episode, or focus it, to play it. ${part.grid[0].marks.length ? "First those rejected or beyond a threshold, then others chosen at random." : "Chosen at random."}` },
  data.conversion && { id: "conversion", title: "Conversion", Content: () => html`<${Conversion} done=${data.conversion} />`,
    lede: "What the conversion did. Every record read is written, rejected, or dropped by a connector, exactly once." },
  ...sectionsOf(part, samples),
].filter(Boolean);

const Contents = () => html`<nav class="contents" aria-label="Contents">
  <div class="logo"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="6" fill="#0b6e99" /><path d="M6 9h8M6 16h8M6 23h8M18 9l4 7-4 7M24 16h3" stroke="#fff" stroke-width="2.5" fill="none" /></svg>rlds-beam report</div>
  <ol><li><a href="#main">Summary</a></li>${sections.map(({ id, title, count }) => html`
    <li><a href=${`#${id}`}><span>${title}</span>${count !== undefined && html`<span class="count">${number(count)}</span>`}</a></li>`)}</ol></nav>`;

function Report() {
  useLayoutEffect(() => {
    addEventListener("hashchange", openTarget);
    openTarget();
  }, []);
  const { made } = data;
  return html`<a class="skip" href="#main">Skip to the content</a><div class="layout"><${Contents} /><main id="main" tabindex="-1">
    <header><div class="heading"><div><h1><${Text} value=${data.title} /></h1><p class="lede"><code><${Text} value=${facts.path} /></code></p></div>
      <div class="bar"><${FlagCount} dataset=${datasets.all[0]} /><${ThemeButton} /></div></div>
      <${Totals} part=${part} /></header>
    ${sections.map((section) => html`<${Section} key=${section.id} ...${{ section, part, show: episodes }} />`)}
    <footer><p>Made by rlds-beam ${made.version}${made.command ? ", with" : "."}</p>${made.command && html`<${Command} text=${made.command} />`}
      <p class="small">Works offline: this file loads nothing and sends nothing. Curves are drawn with uPlot, the page with Preact and htm (MIT and Apache-2.0 licenses).</p></footer>
  </main></div>`;
}

/** A link into a closed block opens it. */
async function openTarget() {
  const id = location.hash.slice(1), target = id && document.getElementById(id);
  if (!target) return;
  openBlocks(target);
  opened.get(id)?.();
  target.scrollIntoView();
  target.focus({ preventScroll: true });
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame); // viewers above it have been drawn
  target.scrollIntoView();
}

document.title = `${line(data.title, 120)} · rlds-beam report`;
render(html`<${Report} />`, document.getElementById("app"));
