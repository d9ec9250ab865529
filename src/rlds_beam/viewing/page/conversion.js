// What a conversion did.
import { html } from "./lib.js";
import { StackedBar } from "./charts.js";
import { Code, Facts, Heading, Region, Said } from "./summary.js";
import { count, number, percent } from "./text.js";

/** The counts of a conversion. */
export function Conversion({ done, section }) {
  const { items } = done, dropped = done.dropped.reduce((sum, one) => sum + one.records, 0);
  const flow = [["written", done.written], ["rejected", done.rejected], ...done.dropped.map((one, i) => [`dropped-${i % 3}`, one.records])];
  const names = [["= ", "written"], ["+ ", "rejected"], ...done.dropped.map((one) => ["+ ", html`dropped by <${Said} text=${one.name} />`])];
  return html`<${Heading} section=${section} lede="What the conversion did. Every record read is written, rejected, or dropped by a connector, exactly once." />
    <div class="panel flow"><h3>${count(done.read, "record")} read</h3>
      <${StackedBar} parts=${flow} label=${`${done.read} records: ${done.written} written, ${done.rejected} rejected, ${dropped} dropped`} />
      <ul class="sum"><li><b>${number(done.read)}</b> read</li>${flow.map(([color, n], i) => html`<li>${names[i][0]}<i class="swatch ${color}"></i><b>${number(n)}</b> ${names[i][1]} <span class="muted">${percent(n, done.read)}</span></li>`)}
        ${!done.dropped.length && html`<li>+ <i class="swatch dropped-0"></i><b>0</b> dropped</li>`}</ul>
      ${done.read !== done.written + done.rejected + dropped && html`<p class="note bad">The counts do not add up.</p>`}
      ${done.repaired > 0 && html`<p class="muted">${number(done.repaired)} of the records were repaired.</p>`}</div>
    <div class="panels">
      <div class="panel"><h3>From and to</h3><dl class="facts"><dt>command</dt><dd><code>rlds-beam ${done.command}</code> <span class="muted">${done.version}</span></dd>
        <dt>source</dt><dd><code><${Said} text=${done.source} /></code></dd><dt>output</dt><dd><${Said} text=${done.to} /></dd></dl>
        ${done.options.length > 0 && html`<details><summary>Options (${done.options.length})</summary><${Facts} items=${done.options} /></details>`}</div>
      <${Items} items=${items} />
      ${done.left_out.length > 0 && html`<div class="panel"><h3>Fields left out</h3>${done.left_out.map((one) => html`<p><${Code} text=${one} /></p>`)}</div>`}
    </div>
    ${done.unused.length > 0 && html`<h3>Steps in no item</h3><${Region} label="Steps in no item"><table>
      <thead><tr><th>reason</th><th class="text">meaning</th><th class="number">episodes</th><th class="number">steps</th><th class="text">what to do</th></tr></thead>
      <tbody>${done.unused.map((one) => html`<tr><th><${Said} text=${one.reason} /></th><td class="text"><${Code} text=${one.meaning} /></td><td class="number">${number(one.episodes)}</td>
        <td class="number">${number(one.steps)}</td><td class="text"><${Code} text=${one.remedy} /></td></tr>`)}</tbody></table></${Region}>`}
    ${done.connectors.length > 0 && html`<h3>Connectors</h3><${Connectors} some=${done.connectors} />`}`;
}

const Items = ({ items }) => html`<div class="panel"><h3>${number(items.items)} <${Said} text=${items.kind} /></h3>
  <dl class="facts"><dt>predicted</dt><dd>${number(items.predicted)} ${items.predicted === items.items ? html`<span class="tag ok">as written</span>` : html`<span class="tag bad">differs</span>`}</dd>
    <dt>steps written</dt><dd>${number(items.steps)}</dd>
    ${items.frames !== null && html`<dt>frames</dt><dd>${number(items.frames)}</dd>`}
    ${items.repeated !== null && html`<dt>frames per step</dt><dd>${number(items.repeated)}</dd>`}
    ${items.padded !== null && html`<dt>padding</dt><dd>${number(items.padded)} ${items.frames > 0 && html`<span class="muted">${percent(items.padded, items.frames)} of frames</span>`}</dd>`}</dl>
  ${items.frames > 0 && html`<div class="meter"><${StackedBar} parts=${[["a", items.frames - (items.padded ?? 0)], ["grey", items.padded ?? 0]]}
    label=${`${items.frames} frames, ${items.padded ?? 0} of them padding`} /></div>`}</div>`;

const Connectors = ({ some }) => html`<${Region} label="Connectors"><table>
  <thead><tr><th class="text">connector</th><th class="number">episodes</th><th class="number">steps</th></tr></thead>
  <tbody>${some.map((one) => html`<tr><th class="text"><code><${Said} text=${one.name} /></code></th>
    ${["episodes", "steps"].map((what) => html`<td class="number">${number(one[`${what}_in`])}${one[`${what}_out`] !== one[`${what}_in`] && ` → ${number(one[`${what}_out`])}`}</td>`)}</tr>`)}
  </tbody></table></${Region}>`;
