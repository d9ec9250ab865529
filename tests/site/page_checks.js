// Run inside a page by test_site.py: returns what is wrong with it, one string each.
async ({wide, light}) => {
  await Promise.all([...document.images].map((image) => image.complete || new Promise((done) => {
    image.onload = image.onerror = done;
  })));
  const problems = [];
  const article = document.querySelector("[role=main]") || document.body;
  const shown = (element) => element.getClientRects().length > 0;
  const name = (element) => {
    const text = (element.textContent || element.getAttribute("src") || "").trim().replace(/\s+/g, " ").slice(0, 60);
    const section = element.closest("section[id]");
    return `<${element.tagName.toLowerCase()}> "${text}"` + (section ? ` in #${section.id}` : "");
  };
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const scrollsInside = (element) => {
    for (let e = element.parentElement; e && e !== article; e = e.parentElement) if (scrolls(e)) return true;
    return false;
  };

  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width || document.body.scrollWidth > width)
    problems.push(`the page scrolls sideways (${document.documentElement.scrollWidth} of ${width} pixels)`);

  // What sticks out to the right of the text, innermost first.
  const edge = article.getBoundingClientRect().right + 12; // headings and tables have a margin of 8
  const outside = [...article.querySelectorAll("*")].filter(
    (e) => shown(e) && e.getBoundingClientRect().right > edge && !scrollsInside(e) && !e.closest("pre, svg, .headerlink"));
  const innermost = outside.filter((e) => !outside.some((other) => other !== e && e.contains(other)));
  for (const e of innermost.slice(0, 10))
    problems.push(`${name(e)} sticks out by ${Math.ceil(e.getBoundingClientRect().right - edge)} pixels: ` +
      "shorten it, or break it with <wbr> or a line break");

  for (const pre of article.querySelectorAll("pre")) {
    if (!shown(pre) || pre.scrollWidth <= pre.clientWidth + 1) continue;
    const longest = pre.textContent.split("\n").reduce((a, b) => (a.length >= b.length ? a : b), "");
    if (wide) {
      const fits = Math.floor(longest.length * pre.clientWidth / pre.scrollWidth);
      problems.push(`code line of ${longest.length} characters, of which about ${fits} fit ("${longest.slice(0, 50)}…"): ` +
        "break the line");
    } else if (!scrolls(pre)) problems.push(`${name(pre)} is cut off: it neither wraps nor scrolls`);
  }

  for (const image of article.querySelectorAll("img")) {
    if (!(image.getAttribute("alt") || "").trim())
      problems.push(`${name(image)} has no description: write it in the brackets, ![what it shows](${image.getAttribute("src")})`);
    if (shown(image) && !(image.complete && image.naturalWidth > 0))
      problems.push(`the picture ${image.getAttribute("src")} does not load`);
    const theme = image.getAttribute("src").match(/-(light|dark)\.svg$/);
    if (theme && shown(image) !== (theme[1] === (light ? "light" : "dark")))
      problems.push(`the picture ${image.getAttribute("src")} is ${shown(image) ? "shown" : "hidden"} in the ` +
        `${light ? "light" : "dark"} theme: name a -light.svg with a -dark.svg next to it`);
  }
  return problems;
}
