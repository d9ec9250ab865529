// A list that renders only what is visible, also if all rows would be taller than a browser allows.
import { html, useEffect, useLayoutEffect, useReducer, useRef, useSize, clamp } from "./lib.js";

const TALLEST = 8_000_000; // pixels; Firefox allows about 17 million, Chromium 33 million
const MARGIN = 6; // rows rendered beyond the edges

/**
 * Scrolls over `rows` rows of `height` pixels. Above TALLEST the scroll bar is scaled: a position of the bar stands for
 * several pixels of the list, and the wheel is handled here, so that it still moves by its own pixels.
 *
 * `control.current` becomes {reveal(row), page}: scrolls a row into view, and the number of rows of a page.
 */
export function Virtual({ rows, height, render, onRange, control, label, head, ...rest }) {
  const [box, width, visible] = useSize();
  const [, again] = useReducer((n) => n + 1, 0);
  const top = useRef(0); // pixels of the list above the edge of the box
  const expected = useRef(0); // the scroll position that we set last
  const header = useRef(null);
  const headHeight = header.current?.offsetHeight ?? 0;
  const room = Math.max(0, visible - headHeight);
  const full = rows * height;
  const tall = Math.min(full, TALLEST);
  const scaled = full > tall;
  const scale = scaled ? (full - room) / Math.max(1, tall - room) : 1;

  const moveTo = (pixels) => {
    top.current = clamp(pixels, 0, Math.max(0, full - room));
    box.current.scrollTop = top.current / scale;
    expected.current = box.current.scrollTop;
    again();
  };
  const state = useRef({});
  state.current = { moveTo, scale, scaled, full, room };

  useEffect(() => {
    const element = box.current;
    const wheel = (event) => {
      const { scaled: handle, moveTo: move } = state.current;
      if (!handle || event.ctrlKey || !event.deltaY) return;
      event.preventDefault();
      move(top.current + event.deltaY * [1, height, state.current.room][event.deltaMode]);
    };
    const scroll = () => {
      if (Math.abs(element.scrollTop - expected.current) < 1) return;
      expected.current = element.scrollTop;
      top.current = element.scrollTop * state.current.scale;
      again();
    };
    element.addEventListener("wheel", wheel, { passive: false });
    element.addEventListener("scroll", scroll, { passive: true });
    return () => {
      element.removeEventListener("wheel", wheel);
      element.removeEventListener("scroll", scroll);
    };
  }, [height]);

  const start = clamp(top.current, 0, Math.max(0, full - room));
  const first = Math.max(0, Math.floor(start / height) - MARGIN);
  const stop = Math.min(rows, Math.ceil((start + room) / height) + MARGIN);
  useEffect(() => onRange(first, stop), [first, stop, rows, onRange]);
  useLayoutEffect(() => {
    control.current = {
      page: Math.max(1, Math.floor(room / height) - 1),
      reveal(row, center) {
        const above = row * height;
        if (center) moveTo(above - (room - height) / 2);
        else if (above < top.current) moveTo(above);
        else if (above + height > top.current + room) moveTo(above + height - room);
      },
    };
  });
  const shift = start / scale - start; // what the scroll bar is off by
  const shown = [];
  for (let row = first; row < stop; row++) shown.push(render(row, { top: `${row * height + shift}px`, height: `${height}px` }, width));
  return html`<div class="virtual" ref=${box} ...${rest} aria-label=${label}>
    <div class="virtual-head" ref=${header}>${head}</div>
    <div class="virtual-body" role="presentation" style=${{ height: `${tall}px` }}>${shown}</div>
  </div>`;
}
