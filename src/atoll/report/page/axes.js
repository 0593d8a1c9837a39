// What all charts share: marks, ticks, and the width of the page.

import { h, s } from "./dom.js";

const COLOURS = 7;
const MARKS = 5; // five and seven share no factor, so 35 lines are all different
export const LETTER = 6.6; // pixels, the width of a letter of a tick label

export const colour = (i) => `var(--series-${i % COLOURS})`;

export function mark(i, x, y, size = 4) {
  const at = { fill: colour(i), stroke: "var(--paper)", "stroke-width": 1 };
  const path = (d) => s("path", { d, ...at });
  const r = size * 1.2;
  switch (i % MARKS) {
    case 0: return s("circle", { cx: x, cy: y, r: size, ...at });
    case 1: return s("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...at });
    case 2: return path(`M${x},${y - r}L${x + r},${y + r}L${x - r},${y + r}Z`);
    case 3: return path(`M${x},${y - r}L${x + r},${y}L${x},${y + r}L${x - r},${y}Z`);
    default: return path(`M${x},${y + r}L${x + r},${y - r}L${x - r},${y - r}Z`);
  }
}

export function swatch(i, dash) {
  return s("svg", { class: "swatch", width: 28, height: 12, "aria-hidden": "true" },
    s("line", { x1: 1, x2: 27, y1: 6, y2: 6, stroke: colour(i), "stroke-width": 2.5, "stroke-dasharray": dash }),
    mark(i, 14, 6, 3.5));
}

// An element that calls `draw(width)` whenever it has another width, and at once by its `redraw()`.
export function fitted(draw, attributes) {
  const box = h("div", { class: "chart", ...attributes });
  let last = 0;
  box.redraw = () => box.replaceChildren(...[draw(last)].flat());
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width && width !== last) {
      last = width;
      box.redraw();
    }
  }).observe(box);
  return box;
}

export function ticks(low, high, most) {
  const span = high - low || 1;
  const rough = span / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((candidate) => candidate >= rough * 0.999);
  const found = [];
  for (let t = Math.ceil(low / step - 1e-9) * step; t <= high + step * 1e-9; t += step) found.push(Number(t.toPrecision(12)));
  return found;
}

export const whole = (values) => values.filter(Number.isInteger);

export function decades(low, high) {
  const found = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p++) found.push(10 ** p);
  return found.length > 1 ? found : [low, high];
}
