// What a report does beyond HTML: the theme, copy buttons, flags, the list of contents, and the viewer of each episode.
import { html, render, useState, useStore, watchWidth } from "./lib.js";
import { datasets } from "./datasets.js";
import { FlagsDialog } from "./dialogs.js";
import { FlagButton, flagsOf } from "./flags.js";
import { get, rows } from "./embedded.js";
import { number } from "./text.js";
import { Viewer } from "./viewer.js";

const root = document.documentElement;
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const say = (text) => { document.getElementById("said").textContent = text; };

/* The theme: the system's until the button is used. */
const THEMES = ["system", "light", "dark"];
for (const button of all("button.theme")) {
  button.addEventListener("click", () => {
    const shown = window.theme.get();
    const dark = shown === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : shown === "dark";
    window.theme.set(THEMES[dark ? 1 : 2]);
    say(`${window.theme.get()} theme`);
  });
}

/* Copy buttons */
async function copied(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* not allowed: the old way */ }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button.copy");
  if (!button) return;
  const done = await copied(button.dataset.copy);
  button.textContent = done ? "Copied" : "Failed";
  button.classList.toggle("done", done);
  button.focus();
  say(done ? "Copied" : "Copying is not allowed here");
  setTimeout(() => { button.textContent = "Copy"; button.classList.remove("done"); }, 1500);
});

/* Episodes: the viewer takes the place of the frames when an episode comes near the window. */
function Live({ dataset, episode, first, article }) {
  const [tab, turn] = useState(first);
  const [beside, choose] = useState(null);
  return html`<${Viewer} ...${{ dataset, episode, tab, beside, step: 0, keys: article }} onTab=${turn} onBeside=${choose} />`;
}

const Flag = ({ dataset, row }) => html`<${FlagButton} flags=${useStore(flagsOf(dataset))} row=${row} tab=${0} />`;

async function show(row) {
  const article = document.getElementById(row.id);
  if ("shown" in article.dataset) return;
  article.dataset.shown = "";
  const episode = await get("/api/episode", row);
  if (!episode.steps) return;
  const dataset = datasets.find(row.dataset);
  const box = document.createElement("div");
  article.querySelector(".still").replaceWith(box);
  article.querySelector(".tags")?.remove();
  render(html`<${Live} ...${{ dataset, episode, article, first: article.dataset.tab ?? "curves" }} />`, box);
  const slot = article.querySelector(".flag-slot");
  if (slot) render(html`<${Flag} dataset=${dataset} row=${row} />`, slot);
}

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    show(leads.get(target.id));
  }
}, { rootMargin: "600px" });
const leads = new Map([...rows.values()].filter((row) => row.place === 0).map((row) => [row.id, row]));
addEventListener("beforeprint", () => leads.forEach((row) => document.getElementById(row.id).clientWidth && show(row)));

/* Flagged episodes */
function FlagCount() {
  const [opened, open] = useState(false);
  const dataset = datasets.all[0], flags = useStore(flagsOf(dataset));
  return html`<button type="button" aria-label=${`Flagged episodes: ${flags.all.size}`} onClick=${() => open(true)}>⚑ ${number(flags.all.size)}</button>
    ${opened && html`<${FlagsDialog} dataset=${dataset} onClose=${() => open(false)} />`}`;
}

/* A link into a closed block opens it. */
async function open() {
  let target = null;
  try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { /* not a name */ }
  if (!target) return;
  if (target.tagName === "DETAILS") target.open = true;
  for (let e = target.parentElement; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  if (leads.has(target.id)) await show(leads.get(target.id));
  target.scrollIntoView();
  target.focus({ preventScroll: true });
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame); // viewers above it have been drawn
  target.scrollIntoView();
}

/* The list of contents follows the page. */
function followContents() {
  const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
  const sections = all("main > section, main > header");
  let current = null, waiting = false;
  const follow = () => {
    const line = innerHeight * 0.3;
    const passed = (scrollY > 0 && sections.findLast((one) => one.getBoundingClientRect().top <= line)) || sections[0];
    const atEnd = scrollY > 0 && scrollY + innerHeight >= root.scrollHeight - 2;
    const link = (atEnd && (links.get(location.hash.slice(1)) ?? links.get(sections.at(-1).id))) || links.get(passed?.id || "main");
    if (!link || link === current) return;
    current?.removeAttribute("aria-current");
    link.setAttribute("aria-current", "true");
    current = link;
    const list = link.closest("nav");
    if (list.scrollWidth > list.clientWidth) list.scrollLeft = link.offsetLeft - 24;
  };
  const wait = () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; follow(); });
    waiting = true;
  };
  addEventListener("scroll", wait, { passive: true });
  new ResizeObserver(wait).observe(document.querySelector("main"));
  follow();
}

followContents();
all(".scroll").forEach(watchWidth);
addEventListener("hashchange", open);
const begin = () => {
  if (!datasets.all) return;
  stop();
  for (const id of leads.keys()) near.observe(document.getElementById(id));
  if (datasets.all.length) render(html`<${FlagCount} />`, document.getElementById("flags"));
  open();
};
const stop = datasets.subscribe(begin);
begin();
