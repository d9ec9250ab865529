// Charts of a summary as SVG, which takes the colors of the page and scales with its column.
import { html } from "./lib.js";
import { number } from "./text.js";

const HEIGHT = 100; // of a chart in its own units; the page stretches it
const MIN_BAR = 3; // a bar that is not empty: one of a million values is still seen
const GAP = 0.12; // between bars, as a share of their width

function Chart({ width, label, children }) {
  const about = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return html`<svg class="chart" viewBox=${`0 0 ${width} ${HEIGHT}`} preserveAspectRatio="none" ...${about}>${children}</svg>`;
}

function bar(x, width, share) {
  const height = Math.max(MIN_BAR, share * HEIGHT);
  return `M${x.toFixed(3)} ${HEIGHT}v${-height.toFixed(2)}h${width.toFixed(3)}v${height.toFixed(2)}Z`;
}

/** A histogram without axes; bins whose middle is above `threshold` have the color of what is wrong. */
export function Bars({ histogram, label, threshold = null }) {
  const { counts, edges } = histogram;
  const most = Math.max(1, ...counts);
  const paths = { a: "", "fill-bad": "" };
  counts.forEach((n, i) => {
    const isBeyond = threshold !== null && (edges[i] + edges[i + 1]) / 2 > threshold;
    if (n) paths[isBeyond ? "fill-bad" : "a"] += bar(i + GAP / 2, 1 - GAP, n / most);
  });
  return counts.length > 0 && html`<${Chart} width=${counts.length} label=${label}>
    ${Object.entries(paths).map(([name, path]) => path && html`<path class=${name} d=${path} />`)}</${Chart}>`;
}

/** Quantiles between minimum and maximum: a line from q01 to q99, a box from q10 to q90, and the median. */
export function Box({ distribution }) {
  const { least, most } = distribution, at = Object.fromEntries(distribution.quantiles);
  const values = [at.q01, at.q10, at.q50, at.q90, at.q99];
  if (least === null || most === null || least === most || values.some((one) => one == null)) return null;
  const [a, b, c, d, e] = values.map((value) => ((1000 * (value - least)) / (most - least)).toFixed(1));
  return html`<${Chart} width="1000"><path class="rule" d="M0 50H1000" /><path class="whisker" d=${`M${a} 50H${e}`} />
    <path class="a" d=${`M${b} 25H${d}V75H${b}Z`} /><path class="median" d=${`M${c} 20V80`} /></${Chart}>`;
}

/** One bar of several parts: [class, count]. */
export function StackedBar({ parts, label }) {
  const some = parts.filter(([, n]) => n > 0), total = some.reduce((sum, [, n]) => sum + n, 0);
  let x = 0;
  return total > 0 && html`<${Chart} width="1000" label=${label}>${some.map(([name, n]) => {
    const start = x, width = (1000 * n) / total;
    x += width;
    return html`<path class=${name} d=${`M${start} 0h${width}v${HEIGHT}h${-width}Z`} />${start > 0 && html`<path class="gap" d=${`M${start} 0v${HEIGHT}`} />`}`;
  })}</${Chart}>`;
}

const isWhole = ({ edges }) => edges.length > 1 && edges[0] % 1 !== 0 && (2 * edges[0]) % 1 === 0 && edges[1] - edges[0] === 1;

/** The only value of a histogram; null if there are several, or none. */
export const constantOf = ({ edges, outside }) => (edges.length === 2 && edges[0] === edges[1] && !outside ? edges[0] : null);

/** The smallest and largest value beneath a histogram, with the unit between them. */
export function Ends({ histogram, unit = "" }) {
  const { edges } = histogram, half = isWhole(histogram) ? 0.5 : 0;
  return edges.length > 0 && html`<div class="ends" aria-hidden="true"><span>${number(edges[0] + half, 3)}</span><span>${unit}</span><span>${number(edges.at(-1) - half, 3)}</span></div>`;
}

/** The bins that are not empty: [text, count]. */
export function binsOf(histogram) {
  const { edges, counts } = histogram, whole = isWhole(histogram);
  return counts.map((n, i) => [whole ? number(edges[i] + 0.5) : `${number(edges[i])} to ${number(edges[i + 1])}`, n]).filter(([, n]) => n);
}
