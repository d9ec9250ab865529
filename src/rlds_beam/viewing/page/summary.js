// The summary of a dataset: what it is, what stands out, rules, signals, distributions, and texts.
import { html, watchWidth } from "./lib.js";
import { Bars, Box, Ends, StackedBar, binsOf, constantOf } from "./charts.js";
import { Command, Copy } from "./dialogs.js";
import { bytes, clean, count, duration, line, number, percent } from "./text.js";

const MOST_TEXT = 4000;
const FLAG = /((?<![\w-])--[a-z]\w*=?)/g;

/** A text of any origin: isolated, with hidden characters visible. */
export function Said({ text, most = MOST_TEXT }) {
  const all = String(text ?? "");
  return html`<bdi>${clean(all.slice(0, most))}${all.length > most && `… (${number(all.length - most)} more characters)`}</bdi>`;
}

/** A text with code between backticks, and with flags that no line break divides. */
export function Code({ text }) {
  const parts = String(text).slice(0, MOST_TEXT).split("`");
  const flags = (part) => part.split(FLAG).map((one, i) => (i % 2 ? html`<code class="nobreak">${one}</code>` : clean(one)));
  return html`<bdi>${parts.length % 2 ? parts.map((part, i) => (i % 2 ? html`<code>${clean(part)}</code>` : flags(part))) : flags(parts.join("\`"))}</bdi>`;
}

export const Heading = ({ section, lede }) => html`<div class="heading"><div>
  <h2 id=${`${section.id}-title`}>${section.title}</h2>
  <p class="lede">${lede}</p></div></div>`;

/** A table that scrolls in its own box. */
export const Region = ({ label, tall, children }) => html`<div class="scroll ${tall ? "tall" : ""}" role="region" aria-label=${line(label, 100)} tabindex="0" ref=${watchWidth}>${children}</div>`;

export const Facts = ({ items }) => html`<dl class="facts">${items.map(([name, text]) => html`<dt><${Said} text=${name} /></dt>
  <dd><${Said} text=${typeof text === "string" ? text : JSON.stringify(text)} /></dd>`)}</dl>`;

/** An episode's key, with a link to where it is shown; `part.linkTo` gives the properties of the link. */
export function Key({ part, text }) {
  const to = part.linkTo(text);
  const short = html`<bdi>${part.nameOf(text)}</bdi>`;
  return html`<span class="key" title=${line(text)}>${to ? html`<a ...${to}>${short}</a>` : short} <${Copy} text=${text} what="the key" /></span>`;
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

const broken = (part) => part.signals.filter((one) => one.beyond).sort((a, b) => b.beyond - a.beyond || (a.name < b.name ? -1 : 1));
const signalId = (part, signal) => `signal-${part.signals.indexOf(signal) + 1}`;

const RuleTags = ({ rule }) => [["bad", "rejected"], ["ok", "repaired"], ["", "accepted"]].map(([color, name]) => rule[name] > 0
  && html`<span class="tag ${color}">${number(rule[name])} ${name}</span> `);

/** The rules broken and the signals beyond thresholds. */
export const Outstanding = ({ part, section }) => html`<h2 id=${`${section.id}-title`}>${section.title}</h2>
  <div class="panel outstanding">
    <ul>${part.rules.map((rule, i) => html`<li><a href=${`#rule-${i + 1}`}>${rule.rule}</a> <span class="muted">${rule.meaning}</span>
      <span class="number"><${RuleTags} rule=${rule} /></span></li>`)}
    ${broken(part).slice(0, 8).map((one) => html`<li><a href=${`#${signalId(part, one)}`}>${one.name}</a> <span class="muted"><${Code} text=${one.summary} /></span>
      <span class="number"><span class="tag warn">${number(one.beyond)} of ${count(one.measured, "episode")}</span></span></li>`)}
    ${!broken(part).length && part.signals.some((one) => one.measured) && html`<li><a href="#signals">Quality signals</a> <span class="muted">no episode is beyond a threshold</span></li>`}</ul></div>
  ${part.notes.map((note) => html`<p class="note"><${Code} text=${note} /></p>`)}`;

/** Schema, splits, card, and provenance. */
export function Dataset({ part, section }) {
  const { facts } = part;
  const levels = [["step", "Step fields"], ["episode", "Episode fields"]];
  return html`<${Heading} section=${section} lede="What it is: its schema, splits, and where it comes from." />
    <div class="panels"><div class="panel"><h3>Splits</h3><${Region} label="Splits"><table>
      <thead><tr><th>split</th><th class="number">${facts.episodes ? "episodes" : "records"}</th><th class="number">shards</th><th class="number">size</th></tr></thead>
      <tbody>${facts.splits.map((one) => html`<tr><th><${Said} text=${one.slice || one.name} /></th><td class="number">${number(one.episodes)}</td>
        <td class="number">${number(one.shards)}</td><td class="number">${bytes(one.bytes)}</td></tr>`)}</tbody></table></${Region}></div>
    ${facts.card.length > 0 && html`<div class="panel"><h3>Card</h3><${Facts} items=${facts.card} /></div>`}
    ${facts.provenance.length > 0 && html`<div class="panel"><h3>Provenance</h3><${Facts} items=${facts.provenance} /></div>`}</div>
    <div class="panel"><h3>Schema</h3>${levels.map(([level, title]) => [title, facts.fields.filter((one) => one.level === level)]).map(([title, fields]) => fields.length > 0 && html`
      <${Region} label=${title}><table class="schema"><thead><tr><th class="text">${title}</th><th>dtype</th><th>shape</th><th>stored as</th></tr></thead>
      <tbody>${fields.map((one) => html`<tr><th class="text"><code><${Said} text=${one.path} /></code></th><td><code>${line(one.dtype, 60)}</code></td>
        <td><code>${line(one.shape, 60)}</code></td><td class="muted"><${Said} text=${one.stored} /></td></tr>`)}</tbody></table></${Region}>`)}</div>`;
}

/** The rules that records broke; `show(rows, open)` shows episodes. */
export const Rules = ({ part, section, show }) => html`
  <${Heading} section=${section} lede="The records that broke a rule, the step that broke it, and the command that repairs or accepts them." />
  ${part.rules.map((rule, i) => html`<div class="rule" id=${`rule-${i + 1}`}>
    <div class="heading"><h3><code>${rule.rule}</code> <span class="muted">${rule.meaning}</span></h3><p class="tags"><${RuleTags} rule=${rule} /></p></div>
    ${rule.advice && html`<p><${Code} text=${rule.advice} /></p>`}
    ${rule.command && html`<${Command} text=${rule.command} />`}
    ${rule.samples.length > 0 && html`<${Region} label=${`Records that broke ${rule.rule}`}><table>
      <thead><tr><th class="text">record</th><th class="number">step</th><th class="text">what is wrong</th></tr></thead>
      <tbody>${rule.samples.map((one) => html`<tr><td class="text"><${Key} part=${part} text=${one.key} /></td><td class="number">${stepsText(one.step)}</td>
        <td class="text"><${Said} text=${one.detail} /></td></tr>`)}</tbody></table></${Region}>`}
    ${show(part.shown.rules[i], 2)}</div>`)}`;

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
      <figcaption class="small muted">${count(signal.measured, "episode")} measured${above && `, ${number(signal.beyond)} (${percent(signal.beyond, signal.measured)}) ${above} ${unit}`}${signal.relative && "; compared with the other episodes"}</figcaption>
      ${same === null && html`<details><summary>Numbers</summary><${Region} label=${`Numbers of ${signal.name}`} tall><table class="small">
        <thead><tr><th>${unit || "value"}</th><th class="number">episodes</th></tr></thead>
        <tbody>${binsOf(histogram).map(([text, n]) => html`<tr><td>${text}</td><td class="number">${number(n)}</td></tr>`)}</tbody></table></${Region}></details>`}</figure>
    <div class="worst">${signal.remedy && html`<p><${Code} text=${signal.remedy} /></p>`}
      ${signal.command && html`<${Command} text=${signal.command} />`}
      ${signal.worst.length > 0 && html`<${Region} label=${`Worst episodes of ${signal.name}`}><table>
        <thead><tr><th class="text">worst episodes</th><th class="number">${unit || "value"}</th><th class="number">step</th><th>field</th></tr></thead>
        <tbody>${signal.worst.map((one) => html`<tr><td class="text"><${Key} part=${part} text=${one.key} /></td><td class="number">${number(one.value)}</td>
          <td class="number">${stepsText(one.step, one.stop)}</td><td><${Said} text=${one.field} /></td></tr>`)}</tbody></table></${Region}>`}</div></div>
  </details>`;
}

const SignalGroups = ({ part, signals }) => [...new Set(signals.map((one) => one.group))].map((group) => html`<div class="signals"><h3>${group}</h3>
  ${signals.filter((one) => one.group === group).map((signal) => html`<${Signal} ...${{ part, signal }} />`)}</div>`);

const Findings = ({ some }) => html`<ul class="findings">${some.map((one) => html`<li><span class="name">${one.check}</span> <code><${Said} text=${one.field} /></code>${" "}
  <${Said} text=${one.detail} /> <span class="muted small"><${Code} text=${one.remedy} /></span></li>`)}</ul>`;

/** Quality signals, those with episodes beyond a threshold first. */
export function Signals({ part, section, show }) {
  const measured = part.signals.filter((one) => one.measured), calm = measured.filter((one) => !one.beyond);
  const { findings, shown } = part;
  return html`<${Heading} section=${section} lede="Numbers that describe every episode. They reject nothing: a threshold says from which value an episode is worth a look." />
    ${findings.length > 0 && html`<h3>The dataset as a whole</h3><${Findings} some=${findings.slice(0, 8)} />`}
    ${findings.length > 8 && html`<details><summary>${number(findings.length - 8)} more</summary><${Findings} some=${findings.slice(8, 100)} />
      ${findings.length > 100 && html`<p class="muted small">and ${number(findings.length - 100)} more, which <code>rlds-beam check --json</code> lists</p>`}</details>`}
    <${SignalGroups} part=${part} signals=${measured.filter((one) => one.beyond)} />
    ${calm.length > 0 && html`<details class="block"><summary>${count(calm.length, "signal")}, ${calm.length > 1 ? "none beyond its threshold" : "not beyond its threshold"}</summary>
      <${SignalGroups} part=${part} signals=${calm} /></details>`}
    ${part.unmeasured.length > 0 && html`<details><summary>Signals that were not measured</summary>${part.unmeasured.map((one) => html`<p class="muted small"><${Code} text=${one} /></p>`)}</details>`}
    ${shown.worst.length > 0 && html`<h3>Episodes with the worst values</h3>${show(shown.worst, 2)}`}`;
}

function Histogram({ distribution, what }) {
  const { histogram, least, most } = distribution;
  if (distribution.count && least === most && !histogram.outside) return html`<p>${number(least)} in every one of ${count(distribution.count, "episode")}</p>`;
  const named = [["mean", distribution.mean], ["std", distribution.std], ["min", least], ...distribution.quantiles, ["max", most]];
  return html`<figure class="histogram large"><${Bars} histogram=${histogram} label=${`Histogram of ${what}: ${named.map(([name, value]) => `${name} ${number(value)}`).join(", ")}`} />
    <${Ends} histogram=${histogram} />
    <figcaption><dl class="quantiles">${named.map(([name, value]) => html`<div><dt>${name}</dt><dd>${number(value)}</dd></div>`)}</dl>
      ${histogram.outside > 0 && html`<p class="small warn">${number(histogram.outside)} values are NaN or infinite</p>`}</figcaption></figure>`;
}

const NAMES = ["mean", "std", "min", "q01", "q10", "q50", "q90", "q99", "max"];

function Dimension({ one }) {
  const values = { mean: one.mean, std: one.std, min: one.least, ...Object.fromEntries(one.quantiles), max: one.most };
  return html`<tr><th scope="row"><${Said} text=${one.label || "value"} />${one.histogram.outside > 0 && html` <span class="tag warn">${number(one.histogram.outside)} NaN, infinite</span>`}</th>
    <td class="chart">${one.least === one.most ? html`<span class="muted small">constant</span>`
      : html`<div class="spark"><${Bars} histogram=${one.histogram} /></div><div class="box"><${Box} distribution=${one} /></div>`}</td>
    ${NAMES.map((name) => html`<td class="number">${number(values[name])}</td>`)}</tr>`;
}

/** Lengths, returns, and the numbers of all fields. */
export function Distributions({ part, section }) {
  const { length, total, fields, left_out: more } = part.distributions;
  return html`<${Heading} section=${section} lede="Of accepted episodes. Bars run from the smallest to the largest value; the line and the box beneath show quantiles." />
    <div class="panels">${length && html`<div class="panel"><h3>Length <span class="muted">transitions per episode</span></h3><${Histogram} distribution=${length} what="transitions per episode" /></div>`}
      ${total && html`<div class="panel"><h3>Return <span class="muted">sum of rewards</span></h3><${Histogram} distribution=${total} what="returns" /></div>`}</div>
    ${fields.length > 0 && html`<${Region} label="Distributions of the fields"><table class="distributions">${fields.map((field) => html`<tbody>
      <tr class="group"><th class="text" scope="col"><code><${Said} text=${field.path} /></code></th><th class="chart" scope="col">distribution</th>
        ${NAMES.map((name) => html`<th class="number" scope="col">${name}</th>`)}</tr>
      ${field.dimensions.map((one) => html`<${Dimension} one=${one} />`)}
      ${(field.left_out > 0 || field.constant > 0) && html`<tr><td colspan="11" class="muted small">${field.left_out > 0 && `${count(field.left_out, "more dimension")}. `}${field.constant > 0 && `${number(field.constant)} constant.`}</td></tr>`}
    </tbody>`)}</table></${Region}>`}
    ${more > 0 && html`<p class="muted small">${count(more, "more field")}: not shown.</p>`}`;
}

/** Instructions and metadata, by the number of episodes. */
export const Texts = ({ part, section }) => html`
  <${Heading} section=${section} lede="The most frequent values of each text field, by the number of accepted episodes." />
  <div class="panels">${part.texts.map((table) => {
    const total = table.values.reduce((sum, one) => sum + one.episodes, table.others + table.missing);
    const Row = ({ text, n, color }) => html`<li><bdi class="clamp">${line(text, 400)}</bdi><span class="number">${number(n)} <span class="muted">${percent(n, total)}</span></span>
      <${StackedBar} parts=${[[color, n], ["soft", total - n]]} /></li>`;
    return html`<div class="panel"><h3><code><${Said} text=${table.field} most=${200} /></code> <span class="muted">${number(table.distinct)} distinct${table.missing > 0 && `, missing in ${number(table.missing)}`}</span></h3>
      <ol class="texts">${table.values.map((one) => html`<${Row} text=${one.text} n=${one.episodes} color="a" />`)}
        ${table.others > 0 && html`<${Row} text=${`${number(table.distinct - table.values.length)} others`} n=${table.others} color="grey" />`}</ol></div>`;
  })}</div>`;

/** A link into a closed block opens it. */
export function openBlocks(target) {
  for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
}
