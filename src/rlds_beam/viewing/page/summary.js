// The summary of a dataset: what it is, what stands out, rules, signals, distributions, and texts. Its charts are SVG, which takes
// the colors of the page and scales with its column.
import { Text, bytes, clean, count, duration, html, line, number, percent, watchWidth } from "./lib.js";
import { Command, Copy } from "./dialogs.js";

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
function Bars({ histogram, label, threshold = null }) {
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

/** One bar of several parts: [class, count]. */
function StackedBar({ parts, label }) {
  const some = parts.filter(([, n]) => n > 0), total = some.reduce((sum, [, n]) => sum + n, 0);
  let x = 0;
  return total > 0 && html`<${Chart} width="1000" label=${label}>${some.map(([name, n]) => {
    const start = x, width = (1000 * n) / total;
    x += width;
    return html`<path class=${name} d=${`M${start} 0h${width}v${HEIGHT}h${-width}Z`} />${start > 0 && html`<path class="gap" d=${`M${start} 0v${HEIGHT}`} />`}`;
  })}</${Chart}>`;
}

/** The only value of a histogram; null if there are several, or none. */
const constantOf = ({ edges, outside }) => (edges.length === 2 && edges[0] === edges[1] && !outside ? edges[0] : null);

/** The smallest and largest value beneath a histogram, with the unit between them; bins of whole numbers begin half a number before. */
function Ends({ histogram: { edges }, unit = "" }) {
  const half = edges.length > 1 && edges[0] % 1 !== 0 && (2 * edges[0]) % 1 === 0 && edges[1] - edges[0] === 1 ? 0.5 : 0;
  return edges.length > 0 && html`<div class="ends" aria-hidden="true"><span>${number(edges[0] + half, 3)}</span><span>${unit}</span><span>${number(edges.at(-1) - half, 3)}</span></div>`;
}

const MOST_TEXT = 4000;
const FLAG = /((?<![\w-])--[a-z]\w*=?)/g;

/** A text with code between backticks, and with flags that no line break divides. */
export function Code({ text }) {
  const parts = String(text).slice(0, MOST_TEXT).split("`");
  const flags = (part) => part.split(FLAG).map((one, i) => (i % 2 ? html`<code class="nobreak">${one}</code>` : clean(one)));
  return html`<bdi>${parts.length % 2 ? parts.map((part, i) => (i % 2 ? html`<code>${clean(part)}</code>` : flags(part))) : flags(parts.join("\`"))}</bdi>`;
}

/** A table in a box that scrolls. `columns` are [title, class]; the first cell of each of the `rows` names it. */
function Table({ label, columns, rows, kind = "" }) {
  return html`<${Region} label=${label}><table class=${kind}>
    <thead><tr>${columns.map(([title, name = ""]) => html`<th class=${name}>${title}</th>`)}</tr></thead>
    <tbody>${rows.map((cells) => html`<tr>${cells.map((content, i) => (i ? html`<td class=${columns[i][1] ?? ""}>${content}</td>` : html`<th class=${columns[i][1] ?? ""}>${content}</th>`))}</tr>`)}</tbody>
  </table></${Region}>`;
}

const Region = ({ label, children }) => html`<div class="scroll" role="region" aria-label=${line(label, 100)} tabindex="0" ref=${watchWidth}>${children}</div>`;

const Facts = ({ items }) => html`<dl class="facts">${items.map(([name, text]) => html`<dt><${Text} value=${name} /></dt>
  <dd><${Text} value=${typeof text === "string" ? text : JSON.stringify(text)} /></dd>`)}</dl>`;

/** An episode's key, with a link to where it is shown; `part.linkTo` gives the properties of the link. */
function Key({ part, text }) {
  const to = part.linkTo(text);
  const name = html`<bdi>${part.nameOf(text)}</bdi>`;
  return html`<span class="key" title=${line(text)}>${to ? html`<a ...${to}>${name}</a>` : name} <${Copy} text=${text} what="the key" /></span>`;
}

export const stepsText = (step, stop) => (step == null ? "" : stop != null && stop > step + 1 ? `${number(step)}–${number(stop - 1)}` : number(step));

export const timeOf = (steps, fps) => (fps > 0 && steps ? ` · ${duration(steps / fps)}` : "");

/** The numbers at the top. */
export function Totals({ part }) {
  const { facts, signals } = part, rows = !facts.episodes && facts.records > facts.rejected;
  const beyond = signals.filter((one) => one.beyond), measured = signals.filter((one) => one.measured);
  const shards = facts.splits.reduce((sum, one) => sum + one.shards, 0);
  const all = [
    rows ? ["Records", number(facts.records), "not episodes"]
      : ["Episodes", number(facts.episodes), facts.episodes === facts.records ? "all accepted" : `accepted of ${number(facts.records)} records`],
    ["Steps", number(facts.steps), facts.episodes ? `${number(facts.steps / facts.episodes, 3)} per episode${timeOf(facts.steps, facts.fps)}` : ""],
    !rows && ["Rejected", number(facts.rejected), (facts.rejected ? percent(facts.rejected, facts.records) : "no record")
      + (facts.repaired ? ` · ${number(facts.repaired)} repaired` : ""), facts.rejected && "bad"],
    measured.length > 0 && ["Signals", number(beyond.length), `of ${measured.length} beyond their threshold`, beyond.length && "warn"],
    ["Size", bytes(facts.bytes), `${count(facts.splits.length, "split")}, ${count(shards, "shard")}`],
    ["Format", line(facts.format, 40), line(facts.file_format, 40) + (facts.fps ? ` · ${number(facts.fps)} fps` : "")],
  ];
  return html`<dl class="totals">${all.filter(Boolean).map(([name, value, note, color]) => html`<div><dt>${name}</dt><dd class=${color || ""}>${value}<small>${note}</small></dd></div>`)}</dl>
    ${facts.problems.map((one) => html`<p class="note bad"><${Code} text=${one} /></p>`)}`;
}

/**
 * The sections of a summary, with that of sample episodes, if there is one: {id, title, count, lede, Content}. `Content` gets the part,
 * and `show(rows, open)`, which shows episodes.
 */
export function sectionsOf({ rules, signals, distributions, texts, facts }, samples = null) {
  const measured = signals.some((one) => one.measured);
  return [
    (rules.length || measured) && { id: "outstanding", title: "What stands out", Content: Outstanding },
    { id: "dataset", title: "Dataset", Content: Dataset, lede: "What it is: its schema, splits, and where it comes from." },
    rules.length && { id: "rejected", title: facts.rejected ? "Rejected records" : "Broken rules", count: facts.rejected || rules.length, Content: Rules,
      lede: "The records that broke a rule, the step that broke it, and the command that repairs or accepts them." },
    measured && { id: "signals", title: "Quality signals", count: signals.filter((one) => one.beyond).length, Content: Signals,
      lede: "Numbers that describe every episode. They reject nothing: a threshold says from which value an episode is worth a look." },
    samples,
    (distributions.length || distributions.total || distributions.fields.length) && { id: "distributions", title: "Distributions", count: distributions.fields.length, Content: Distributions,
      lede: "Of accepted episodes. Bars run from the smallest to the largest value." },
    texts.length && { id: "texts", title: "Instructions and metadata", count: texts.length, Content: Texts,
      lede: "The most frequent values of each text field, by the number of accepted episodes." },
  ].filter(Boolean);
}

export const Section = ({ section: { id, title, lede, Content }, part, show }) => html`<section id=${id} aria-labelledby=${`${id}-title`}>
  <div><h2 id=${`${id}-title`}>${title}</h2>${lede && html`<p class="lede">${lede}</p>`}</div>
  <${Content} part=${part} show=${show} /></section>`;

const signalId = (part, signal) => `signal-${part.signals.indexOf(signal) + 1}`;

const RuleTags = ({ rule }) => [["bad", "rejected"], ["ok", "repaired"], ["", "accepted"]].map(([color, name]) => rule[name] > 0
  && html`<span class="tag ${color}">${number(rule[name])} ${name}</span> `);

/** The rules broken and the signals beyond thresholds. */
function Outstanding({ part }) {
  const broken = part.signals.filter((one) => one.beyond).sort((a, b) => b.beyond - a.beyond || (a.name < b.name ? -1 : 1));
  return html`<div class="panel outstanding">
    <ul>${part.rules.map((rule, i) => html`<li><a href=${`#rule-${i + 1}`}>${rule.rule}</a> <span class="muted">${rule.meaning}</span>
      <span class="number"><${RuleTags} rule=${rule} /></span></li>`)}
    ${broken.slice(0, 8).map((one) => html`<li><a href=${`#${signalId(part, one)}`}>${one.name}</a> <span class="muted"><${Code} text=${one.summary} /></span>
      <span class="number"><span class="tag warn">${number(one.beyond)} of ${count(one.measured, "episode")}</span></span></li>`)}
    ${!broken.length && part.signals.some((one) => one.measured) && html`<li><a href="#signals">Quality signals</a> <span class="muted">no episode is beyond a threshold</span></li>`}</ul></div>
  ${part.notes.map((note) => html`<p class="note"><${Code} text=${note} /></p>`)}`;
}

/** Schema, splits, card, and provenance. */
function Dataset({ part: { facts } }) {
  const splits = facts.splits.map((one) => [html`<${Text} value=${one.slice || one.name} />`, number(one.episodes), number(one.shards), bytes(one.bytes)]);
  const fieldRow = (one) => [html`<code><${Text} value=${one.path} /></code>`, html`<code>${line(one.dtype, 60)}</code>`, html`<code>${line(one.shape, 60)}</code>`,
    html`<${Text} value=${one.stored} />`];
  const levels = [["Step fields", "step"], ["Episode fields", "episode"]].map(([title, level]) => [title, facts.fields.filter((one) => one.level === level)]);
  return html`<div class="panels"><div class="panel"><h3>Splits</h3>
      <${Table} label="Splits" columns=${[["split"], [facts.episodes ? "episodes" : "records", "number"], ["shards", "number"], ["size", "number"]]} rows=${splits} /></div>
    ${[["Card", facts.card], ["Provenance", facts.provenance]].map(([title, items]) => items.length > 0 && html`<div class="panel"><h3>${title}</h3><${Facts} items=${items} /></div>`)}</div>
    <div class="panel"><h3>Schema</h3>${levels.map(([title, fields]) => fields.length > 0 && html`
      <${Table} label=${title} kind="schema" columns=${[[title, "text"], ["dtype"], ["shape"], ["stored as", "muted"]]} rows=${fields.map(fieldRow)} />`)}</div>`;
}

const BROKEN = [["record", "text"], ["step", "number"], ["what is wrong", "text"]];

const Rules = ({ part, show }) => part.rules.map((rule, i) => html`<div class="rule" id=${`rule-${i + 1}`}>
  <div class="heading"><h3><code>${rule.rule}</code> <span class="muted">${rule.meaning}</span></h3><p class="tags"><${RuleTags} rule=${rule} /></p></div>
  ${rule.advice && html`<p><${Code} text=${rule.advice} /></p>`}
  ${rule.command && html`<${Command} text=${rule.command} />`}
  ${rule.samples.length > 0 && html`<${Table} label=${`Records that broke ${rule.rule}`} columns=${BROKEN}
    rows=${rule.samples.map((one) => [html`<${Key} part=${part} text=${one.key} />`, stepsText(one.step), html`<${Text} value=${one.detail} />`])} />`}
  ${show(part.shown.rules[i], 2)}</div>`);

function Signal({ part, signal }) {
  const { histogram, threshold, unit } = signal, same = constantOf(histogram);
  const above = threshold !== null && `above ${number(threshold)}`;
  return html`<details class="signal" id=${signalId(part, signal)}>
    <summary><span class="name">${signal.name}</span><span class="about"><${Code} text=${signal.summary} /></span>
      <span class="spark">${same === null ? html`<${Bars} ...${{ histogram, threshold }} />` : html`<span class="muted small">all ${number(same)}</span>`}</span>
      <span class="count">${!above ? html`<span class="muted">no threshold</span>` : signal.beyond ? html`<span class="tag warn">${number(signal.beyond)} ${above}</span>`
        : html`<span class="tag ok">none ${above}</span>`}</span></summary>
    <div class="inside"><figure class="histogram">
      ${same === null ? html`<${Bars} ...${{ histogram, threshold }} label=${`Histogram of ${signal.name} over ${count(signal.measured, "episode")}`} /><${Ends} ...${{ histogram, unit }} />`
        : html`<p>${number(same)} ${unit} in every episode</p>`}
      <figcaption class="small muted">${count(signal.measured, "episode")} measured${above && `, ${number(signal.beyond)} (${percent(signal.beyond, signal.measured)}) ${above} ${unit}`}${signal.relative && "; compared with the other episodes"}</figcaption></figure>
    <div class="worst">${signal.remedy && html`<p><${Code} text=${signal.remedy} /></p>`}
      ${signal.command && html`<${Command} text=${signal.command} />`}
      ${signal.worst.length > 0 && html`<${Table} label=${`Worst episodes of ${signal.name}`} columns=${[["worst episodes", "text"], [unit || "value", "number"], ["step", "number"], ["field"]]}
        rows=${signal.worst.map((one) => [html`<${Key} part=${part} text=${one.key} />`, number(one.value), stepsText(one.step, one.stop), html`<${Text} value=${one.field} />`])} />`}</div></div>
  </details>`;
}

const SignalGroups = ({ part, signals }) => [...new Set(signals.map((one) => one.group))].map((group) => html`<div class="signals"><h3>${group}</h3>
  ${signals.filter((one) => one.group === group).map((signal) => html`<${Signal} ...${{ part, signal }} />`)}</div>`);

const Findings = ({ some }) => html`<ul class="findings">${some.map((one) => html`<li><span class="name">${one.check}</span> <code><${Text} value=${one.field} /></code>${" "}
  <${Text} value=${one.detail} /> <span class="muted small"><${Code} text=${one.remedy} /></span></li>`)}</ul>`;

/** Quality signals, those with episodes beyond a threshold first. */
function Signals({ part, show }) {
  const measured = part.signals.filter((one) => one.measured), calm = measured.filter((one) => !one.beyond);
  const { findings, shown } = part;
  return html`${findings.length > 0 && html`<h3>The dataset as a whole</h3><${Findings} some=${findings.slice(0, 8)} />`}
    ${findings.length > 8 && html`<details><summary>${number(findings.length - 8)} more</summary><${Findings} some=${findings.slice(8, 100)} />
      ${findings.length > 100 && html`<p class="muted small">and ${number(findings.length - 100)} more, which <code>rlds-beam check --json</code> lists</p>`}</details>`}
    <${SignalGroups} part=${part} signals=${measured.filter((one) => one.beyond)} />
    ${calm.length > 0 && html`<details class="block"><summary>${count(calm.length, "signal")}, ${calm.length > 1 ? "none beyond its threshold" : "not beyond its threshold"}</summary>
      <${SignalGroups} part=${part} signals=${calm} /></details>`}
    ${part.unmeasured.length > 0 && html`<details><summary>Signals that were not measured</summary>${part.unmeasured.map((one) => html`<p class="muted small"><${Code} text=${one} /></p>`)}</details>`}
    ${shown.worst.length > 0 && html`<h3>Episodes with the worst values</h3>${show(shown.worst, 2)}`}`;
}

/** The numbers of a distribution by name, in order. */
const numbersOf = (one) => [["mean", one.mean], ["std", one.std], ["min", one.least], ...one.quantiles, ["max", one.most]];

function Histogram({ distribution, title, what }) {
  const { histogram, least, most } = distribution, named = numbersOf(distribution);
  const constant = distribution.count && least === most && !histogram.outside;
  return html`<div class="panel"><h3>${title} <span class="muted">${what}</span></h3>
    ${constant ? html`<p>${number(least)} in every one of ${count(distribution.count, "episode")}</p>`
      : html`<figure class="histogram large"><${Bars} histogram=${histogram} label=${`Histogram of ${what}: ${named.map(([name, value]) => `${name} ${number(value)}`).join(", ")}`} />
    <${Ends} histogram=${histogram} />
    <figcaption><dl class="quantiles">${named.map(([name, value]) => html`<div><dt>${name}</dt><dd>${number(value)}</dd></div>`)}</dl>
      ${histogram.outside > 0 && html`<p class="small warn">${number(histogram.outside)} values are NaN or infinite</p>`}</figcaption></figure>`}</div>`;
}

const NAMES = ["mean", "std", "min", "q01", "q10", "q50", "q90", "q99", "max"];

function Dimension({ one }) {
  const values = Object.fromEntries(numbersOf(one));
  return html`<tr><th scope="row"><${Text} value=${one.label || "value"} />${one.histogram.outside > 0 && html` <span class="tag warn">${number(one.histogram.outside)} NaN, infinite</span>`}</th>
    <td class="chart">${one.least === one.most ? html`<span class="muted small">constant</span>`
      : html`<div class="spark"><${Bars} histogram=${one.histogram} /></div>`}</td>
    ${NAMES.map((name) => html`<td class="number">${number(values[name])}</td>`)}</tr>`;
}

/** Lengths, returns, and the numbers of all fields. */
function Distributions({ part }) {
  const { length, total, fields, left_out: more } = part.distributions;
  return html`<div class="panels">${length && html`<${Histogram} distribution=${length} title="Length" what="transitions per episode" />`}
      ${total && html`<${Histogram} distribution=${total} title="Return" what="sum of rewards" />`}</div>
    ${fields.length > 0 && html`<${Region} label="Distributions of the fields"><table class="distributions">${fields.map((field) => html`<tbody>
      <tr class="group"><th class="text" scope="col"><code><${Text} value=${field.path} /></code></th><th class="chart" scope="col">distribution</th>
        ${NAMES.map((name) => html`<th class="number" scope="col">${name}</th>`)}</tr>
      ${field.dimensions.map((one) => html`<${Dimension} one=${one} />`)}
      ${(field.left_out > 0 || field.constant > 0) && html`<tr><td colspan="11" class="muted small">${field.left_out > 0 && `${count(field.left_out, "more dimension")}. `}${field.constant > 0 && `${number(field.constant)} constant.`}</td></tr>`}
    </tbody>`)}</table></${Region}>`}
    ${more > 0 && html`<p class="muted small">${count(more, "more field")}: not shown.</p>`}`;
}

/** Instructions and metadata, by the number of episodes. */
const Texts = ({ part }) => html`<div class="panels">${part.texts.map((table) => {
  const total = table.values.reduce((sum, one) => sum + one.episodes, table.others + table.missing);
  const Row = ({ text, n, color }) => html`<li><bdi class="clamp">${line(text, 400)}</bdi><span class="number">${number(n)} <span class="muted">${percent(n, total)}</span></span>
    <${StackedBar} parts=${[[color, n], ["soft", total - n]]} /></li>`;
  return html`<div class="panel"><h3><code><${Text} value=${table.field} most=${200} /></code> <span class="muted">${number(table.distinct)} distinct${table.missing > 0 && `, missing in ${number(table.missing)}`}</span></h3>
    <ol class="texts">${table.values.map((one) => html`<${Row} text=${one.text} n=${one.episodes} color="a" />`)}
      ${table.others > 0 && html`<${Row} text=${`${number(table.distinct - table.values.length)} others`} n=${table.others} color="grey" />`}</ol></div>`;
})}</div>`;

/** A link into a closed block opens it. */
export function openBlocks(target) {
  for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
}

/** The counts of a conversion. */
export function Conversion({ done }) {
  const { items } = done, dropped = done.dropped.reduce((sum, one) => sum + one.records, 0);
  const flow = [["written", done.written], ["rejected", done.rejected], ...done.dropped.map((one, i) => [`dropped-${i % 3}`, one.records])];
  const names = [["= ", "written"], ["+ ", "rejected"], ...done.dropped.map((one) => ["+ ", html`dropped by <${Text} value=${one.name} />`])];
  const unused = done.unused.map((one) => [html`<${Text} value=${one.reason} />`, html`<${Code} text=${one.meaning} />`, number(one.episodes), number(one.steps), html`<${Code} text=${one.remedy} />`]);
  const inOut = (one, what) => `${number(one[`${what}_in`])}${one[`${what}_out`] !== one[`${what}_in`] ? ` → ${number(one[`${what}_out`])}` : ""}`;
  return html`<div class="panel flow"><h3>${count(done.read, "record")} read</h3>
      <${StackedBar} parts=${flow} label=${`${done.read} records: ${done.written} written, ${done.rejected} rejected, ${dropped} dropped`} />
      <ul class="sum"><li><b>${number(done.read)}</b> read</li>${flow.map(([color, n], i) => html`<li>${names[i][0]}<i class="swatch ${color}"></i><b>${number(n)}</b> ${names[i][1]} <span class="muted">${percent(n, done.read)}</span></li>`)}
        ${!done.dropped.length && html`<li>+ <i class="swatch dropped-0"></i><b>0</b> dropped</li>`}</ul>
      ${done.repaired > 0 && html`<p class="muted">${number(done.repaired)} of the records were repaired.</p>`}</div>
    <div class="panels">
      <div class="panel"><h3>From and to</h3><dl class="facts"><dt>command</dt><dd><code>rlds-beam ${done.command}</code> <span class="muted">${done.version}</span></dd>
        <dt>source</dt><dd><code><${Text} value=${done.source} /></code></dd><dt>output</dt><dd><${Text} value=${done.to} /></dd></dl></div>
      <div class="panel"><h3>${number(items.items)} <${Text} value=${items.kind} /></h3><p>from ${count(items.steps, "step")}</p></div>
      ${done.left_out.length > 0 && html`<div class="panel"><h3>Fields left out</h3>${done.left_out.map((one) => html`<p><${Code} text=${one} /></p>`)}</div>`}
    </div>
    ${unused.length > 0 && html`<h3>Steps in no item</h3><${Table} label="Steps in no item" rows=${unused}
      columns=${[["reason"], ["meaning", "text"], ["episodes", "number"], ["steps", "number"], ["what to do", "text"]]} />`}
    ${done.connectors.length > 0 && html`<h3>Connectors</h3><${Table} label="Connectors" columns=${[["connector", "text"], ["episodes", "number"], ["steps", "number"]]}
      rows=${done.connectors.map((one) => [html`<code><${Text} value=${one.name} /></code>`, inOut(one, "episodes"), inOut(one, "steps")])} />`}`;
}
