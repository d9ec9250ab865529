// The summary of a dataset that was measured, as in a report.
import { html, useEffect, useLoaded } from "./lib.js";
import { link } from "./route.js";
import { get } from "./source.js";
import { Dataset, Distributions, Outstanding, Rules, Signals, Texts, Totals, openBlocks } from "./summary.js";
import { line, number, shortKey } from "./text.js";

const none = () => null; // episodes are shown on their own pages

/** A part of a report, whose episodes are pages of the browser. */
const partOf = (summary) => ({
  ...summary, shown: { rules: [], worst: [] },
  nameOf: (key) => (Object.hasOwn(summary.numbers, key) ? `episode ${number(summary.numbers[key])}` : shortKey(key)),
  linkTo: (key) => link({ view: "", episode: key, at: "", t: "" }),
});

function sectionsOf(part) {
  const measured = part.signals.some((one) => one.measured);
  return [
    (part.rules.length || measured) && ["outstanding", "What stands out", Outstanding],
    ["dataset", "Dataset", Dataset],
    part.rules.length && ["rejected", "Broken rules", Rules],
    measured && ["signals", "Quality signals", Signals],
    part.distributions.length && ["distributions", "Distributions", Distributions],
    part.texts.length && ["texts", "Instructions and metadata", Texts],
  ].filter(Boolean);
}

export function Overview({ dataset }) {
  const { data, error } = useLoaded((signal) => get("/api/summary", { dataset: dataset.id }, signal), [dataset.id, dataset.summary]);
  useEffect(() => {
    const follow = () => openBlocks(document.getElementById(location.hash.slice(1)));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  if (error) return html`<main><p class="empty">${line(error, 500)}</p></main>`;
  if (!data) return html`<main><p class="wait">Loading…</p></main>`;
  const part = partOf(data);
  return html`<div class="report overview"><main><${Totals} part=${part} />
    ${sectionsOf(part).map(([id, title, Content]) => html`<section key=${id} id=${id} aria-labelledby=${`${id}-title`}>
      <${Content} ...${{ part, section: { id, title }, show: none }} /></section>`)}</main></div>`;
}
