/* What the report does beyond HTML: the theme, copy buttons, the list of contents, and the curves. Without it, all
   numbers, frames, and histograms are still there. No text of the dataset becomes markup here. */
"use strict";
(() => {
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const say = (text) => { document.getElementById("said").textContent = text; };
  root.classList.add("js");

  /* Theme: the system's until the button is used. */
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("rlds-beam-theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  for (const button of all("button.theme")) {
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("rlds-beam-theme", root.dataset.theme); } catch { /* private windows */ }
      say(`${root.dataset.theme} theme`);
      redrawAll();
    });
  }
  dark.addEventListener("change", () => redrawAll());

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

  /* A link into a closed block opens it. */
  function open() {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch { /* not a name */ }
    if (!target) return;
    if (target.tagName === "DETAILS") target.open = true;
    for (let e = target.parentElement; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    target.scrollIntoView();
    target.focus({preventScroll: true});
  }
  addEventListener("hashchange", open);
  addEventListener("load", open);

  /* The list of contents follows the page. */
  const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
  const sections = all("main > section, main > header");
  let current = null;
  function follow() {
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
  }
  let waiting = false;
  addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; follow(); });
    waiting = true;
  }, {passive: true});
  follow();

  /* Curves */
  const HEIGHT = 112, AXIS = 22, RIGHT = 10, PAGE = 10;
  const plots = new Map(); // canvas box -> uPlot
  const probe = document.createElement("i");
  probe.className = "hidden";
  document.body.append(probe);
  const color = (name) => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
  const gutter = () => parseFloat(getComputedStyle(root).getPropertyValue("--gutter")) || 52;

  function short(value) {
    if (value === null || value === undefined) return "";
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-4)) return value.toExponential(1);
    return value.toLocaleString("en-US", {maximumSignificantDigits: 4});
  }

  function drawMarks(u, data, colors) {
    const {ctx, bbox} = u, scale = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - scale, bbox.top, bbox.width + 2 * scale, bbox.height);
    ctx.clip();
    ctx.font = `${11 * scale}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    let row = 0;
    for (const mark of data.marks) {
      const x = u.valToPos(mark.step, "x", true);
      const end = mark.stop === null ? x : u.valToPos(Math.min(mark.stop - 1, data.last), "x", true);
      const ink = mark.kind === "rule" ? colors.bad : colors.warn;
      ctx.fillStyle = ctx.strokeStyle = ink;
      ctx.globalAlpha = mark.strong ? 0.16 : 0.07;
      if (end > x) ctx.fillRect(x, bbox.top, end - x, bbox.height);
      ctx.globalAlpha = mark.strong ? 1 : 0.4;
      ctx.lineWidth = 1.5 * scale;
      ctx.setLineDash(mark.strong ? [] : [3 * scale, 3 * scale]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (!mark.label) continue;
      const width = ctx.measureText(mark.name).width, space = 4 * scale;
      const right = x + width + 2 * space < bbox.left + bbox.width;
      const at = right ? x + space : x - space - width, y = bbox.top + (2 + 14 * (row++ % 6)) * scale;
      ctx.fillStyle = colors.page;
      ctx.globalAlpha = 0.8;
      ctx.fillRect(at - 2 * scale, y - scale, width + 4 * scale, 14 * scale);
      ctx.globalAlpha = 1;
      ctx.fillStyle = ink;
      ctx.fillText(mark.name, at, y);
    }
    ctx.restore();
  }

  function values(figure, u) {
    const step = u.cursor.idx;
    for (const button of all(".legend button", figure)) {
      const series = u.data[Number(button.dataset.series)];
      button.lastElementChild.textContent = step === null || step === undefined ? "" : series[step] === null ? "NaN" : short(series[step]);
    }
  }

  function showFrame(episode, step) {
    for (const list of all(".frames", episode)) {
      const frames = all("li", list).filter((frame) => frame.offsetWidth);
      const distance = (frame) => Math.abs(Number(frame.dataset.step) - step);
      const nearest = step === null ? null : frames.reduce((a, b) => (distance(b) < distance(a) ? b : a), frames[0]);
      for (const frame of all("li", list)) frame.classList.toggle("now", frame === nearest);
    }
  }

  /* In seconds if the rate is known, otherwise in steps. */
  const SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 36000];
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6];
  const time = (fps) => fps ? {incrs: SECONDS.map((one) => one * fps), values: (_, splits) => splits.map((one) => `${short(one / fps)} s`)} : {incrs: STEPS};

  function options(figure, episode, data, last) {
    const colors = {bad: color("bad"), warn: color("warn"), page: color("page")};
    const axis = {stroke: color("muted"), grid: {stroke: color("hair"), width: 1}, ticks: {show: false}, font: "11px system-ui, sans-serif"};
    const labels = all(".legend button", figure);
    return {
      width: figure.clientWidth,
      height: HEIGHT + (last ? AXIS : 6),
      padding: [6, RIGHT, last ? 0 : 6, 0],
      legend: {show: false},
      cursor: {
        sync: {key: episode.id || "plot", setSeries: false},
        drag: {x: false, y: false},
        points: {size: 5, width: 0},
        y: false,
      },
      scales: {x: {time: false, range: () => (data.last ? [0, data.last] : [-0.5, 0.5])}, y: {range: span}},
      axes: [
        {...axis, show: last, size: AXIS, gap: 3, ...time(Number(episode.dataset.fps))},
        {...axis, size: gutter(), gap: 4, space: 28, values: (_, splits) => splits.map(short)},
      ],
      series: [{}, ...data.y.map((_, i) => ({
        stroke: color(`series-${i % 8}`),
        width: 1.5,
        dash: i >= 8 ? [4, 2] : undefined,
        show: labels[i]?.getAttribute("aria-pressed") !== "false",
        points: {show: data.x.length < 3},
        spanGaps: false,
      }))],
      hooks: {
        draw: [(u) => drawMarks(u, data, colors)],
        setCursor: [(u) => {
          const at = u.cursor.idx;
          values(figure, u);
          showFrame(episode, at === null || at === undefined ? null : u.data[0][at]);
        }],
      },
    };
  }

  function span(_, low, high) {
    if (low === null || high === null) return [0, 1];
    const space = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
    return [low - space, high + space];
  }

  function drawPlot(box) {
    const figure = box.closest(".plot"), episode = figure.closest(".episode") ?? figure;
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    plots.get(box)?.destroy();
    const last = all(".plot", episode).at(-1) === figure;
    plots.set(box, new uPlot(options(figure, episode, data, last), [data.x, ...data.y], box));
    box.dataset.drawn = "";
  }

  function redrawAll() { for (const box of plots.keys()) drawPlot(box); }

  /* Moves the cursor of a plot to a point; the plots of the same episode follow. */
  function move(box, index) {
    const u = plots.get(box), x = u.data[0];
    const at = Math.min(Math.max(index, 0), x.length - 1);
    u.setCursor({left: u.valToPos(x[at], "x"), top: 1});
    const figure = box.closest(".plot");
    const texts = all(".legend button", figure).slice(0, 12)
      .map((button) => `${button.querySelector("bdi").textContent} ${button.lastElementChild.textContent}`);
    box.setAttribute("aria-valuenow", x[at]);
    box.setAttribute("aria-valuetext", `step ${x[at]}: ${texts.join(", ")}`);
  }

  const MOVES = {ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: PAGE, PageDown: -PAGE, Home: -Infinity, End: Infinity};
  function onKey(event) {
    const box = event.currentTarget, u = plots.get(box);
    if (!u || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") u.setCursor({left: -10, top: -10});
    else if (event.key in MOVES) {
      const now = u.cursor.idx ?? (MOVES[event.key] > 0 ? -1 : u.data[0].length);
      move(box, now + MOVES[event.key] * (event.shiftKey ? PAGE : 1));
    } else return;
    event.preventDefault();
  }

  for (const button of all(".legend button")) {
    button.addEventListener("click", () => {
      const box = button.closest(".plot").querySelector(".canvas"), shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      plots.get(box)?.setSeries(Number(button.dataset.series), {show: shown});
    });
  }
  for (const frame of all(".frames li")) {
    frame.addEventListener("pointerenter", () => {
      const box = frame.closest(".episode").querySelector(".canvas"), u = plots.get(box);
      if (u) u.setCursor({left: u.valToPos(Number(frame.dataset.step), "x"), top: 1});
    });
  }

  /* Plots are drawn when they come near the window, and again when their width changes. */
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); drawPlot(entry.target); }
  }, {rootMargin: "600px"});
  const sized = new ResizeObserver((entries) => {
    for (const {target} of entries) {
      const u = plots.get(target);
      if (u && target.clientWidth && target.clientWidth !== u.width) drawPlot(target);
    }
  });
  for (const box of all(".plot .canvas")) {
    box.addEventListener("keydown", onKey);
    seen.observe(box);
    sized.observe(box);
  }
  addEventListener("beforeprint", () => {
    for (const box of all(".plot .canvas")) if (!plots.has(box) && box.clientWidth) drawPlot(box);
  });
})();
