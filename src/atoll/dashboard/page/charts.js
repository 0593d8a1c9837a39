// The pictures. Each fits the width it is given and is drawn again when that changes; colours are those of the page.

import { h, s } from "./dom.js";

const COLOURS = 7;
const MARKS = 5; // five and seven share no factor, so 35 lines are all different
const LETTER = 6.6; // pixels, the width of a letter of a tick label

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

// An element that calls `draw(width)` whenever it has another width.
function fitted(draw, attributes) {
  const box = h("div", { class: "chart", ...attributes });
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(box.clientWidth);
    if (width && width !== last) {
      last = width;
      box.replaceChildren(...[draw(width)].flat());
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

const whole = (values) => values.filter(Number.isInteger);

function decades(low, high) {
  const found = [];
  for (let p = Math.ceil(Math.log10(low) - 1e-9); p <= Math.log10(high) + 1e-9; p++) found.push(10 ** p);
  return found.length > 1 ? found : [low, high];
}

// -- lines ----------------------------------------------------------------------------------------------------------

// series: [{ name, index, dash, x, y, low, high }]; y may have gaps (null).
export function lines({ series, label, xTitle, yTitle, showX, showY, tickY = showY, log = false, zero = false, height = 300 }) {
  const drawn = series.filter((one) => one.y.some((v) => v !== null));
  if (!drawn.length) return h("p", { class: "muted" }, "Nothing to draw yet.");
  return fitted((width) => linesAt(width, { series: drawn, label, xTitle, yTitle, showX, showY, tickY, log, zero, height }));
}

function linesAt(width, { series, label, xTitle, yTitle, showX, showY, tickY, log, zero, height }) {
  const xs = [...new Set(series.flatMap((one) => one.x.filter((x) => !log || x > 0)))].sort((a, b) => a - b);
  const ys = series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]).filter((v) => v !== null);
  let [y0, y1] = [zero ? 0 : Math.min(...ys), Math.max(...ys)];
  const pad = (y1 - y0 || Math.abs(y1) || 1) * 0.06;
  [y0, y1] = [y0 >= 0 ? Math.max(0, y0 - pad) : y0 - pad, y1 + pad];
  const yTicks = ticks(y0, y1, height / 48);
  const left = 26 + LETTER * Math.max(...yTicks.map((t) => tickY(t).length));
  const box = { left, right: width - 14, top: 10, bottom: height - 42 };
  const place = log ? Math.log10 : (v) => v;
  const [x0, x1] = [place(xs[0]), place(xs.at(-1))];
  const X = (x) => box.left + 6 + ((place(x) - x0) / (x1 - x0 || 1)) * (box.right - box.left - 12) + (x1 === x0 ? (box.right - box.left) / 2 : 0);
  const Y = (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top);
  const room = Math.max(2, Math.floor((box.right - box.left) / 70));
  const xTicks = log ? decades(xs[0], xs.at(-1)) : xs.length === 1 ? xs : whole(ticks(xs[0], xs.at(-1), room));

  const picture = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": label },
    yTicks.map((t) => [
      s("line", { class: "grid", x1: box.left, x2: box.right, y1: Y(t), y2: Y(t) }),
      s("text", { class: "tick", x: box.left - 6, y: Y(t) + 4, "text-anchor": "end" }, tickY(t)),
    ]),
    xTicks.map((t) => s("text", { class: "tick", x: X(t), y: box.bottom + 17, "text-anchor": "middle" }, showX(t))),
    s("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    s("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle),
    s("text", { class: "title", x: 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle",
      transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})` }, yTitle),
    series.map((one) => [band(one, X, Y, log), ...strokes(one, X, Y, log), ...marks(one, X, Y, log)]));
  return [picture, ...pointer(picture, { series, xs, X, Y, box, showX, showY, xTitle, width })];
}

const points = (one, log) => one.x.map((x, i) => [x, one.y[i], i]).filter(([x, y]) => y !== null && (!log || x > 0));

function band(one, X, Y, log) {
  if (!one.low || one.low.every((v, i) => v === one.high[i])) return null;
  const at = points(one, log);
  const over = at.map(([x, , i]) => `${X(x)},${Y(one.high[i])}`);
  const under = at.map(([x, , i]) => `${X(x)},${Y(one.low[i])}`).reverse();
  return s("polygon", { points: [...over, ...under].join(" "), fill: colour(one.index), opacity: 0.16 });
}

function strokes(one, X, Y, log) {
  const at = points(one, log).map(([x, y]) => `${X(x)},${Y(y)}`).join(" ");
  return [s("polyline", { points: at, fill: "none", stroke: colour(one.index), "stroke-width": 2, "stroke-dasharray": one.dash })];
}

function marks(one, X, Y, log) {
  const at = points(one, log);
  const every = Math.max(1, Math.ceil(at.length / 12));
  return at.filter((_, i) => i % every === 0 || i === at.length - 1).map(([x, y]) => mark(one.index, X(x), Y(y), 3.4));
}

// The values at one place on the axis, by mouse or by arrow keys.
function pointer(picture, { series, xs, X, Y, box, showX, showY, xTitle, width }) {
  const line = s("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const dots = s("g", {});
  picture.append(line, dots);
  const tip = h("div", { class: "tip", hidden: true, role: "status" });
  let at = -1;
  const show = (i) => {
    at = Math.max(0, Math.min(xs.length - 1, i));
    const x = xs[at];
    const found = series.map((one) => [one, one.y[one.x.indexOf(x)]]).filter(([, y]) => y !== null && y !== undefined);
    line.setAttribute("x1", X(x));
    line.setAttribute("x2", X(x));
    line.setAttribute("visibility", "visible");
    dots.replaceChildren(...found.map(([one, y]) => mark(one.index, X(x), Y(y), 5)));
    const listed = found.sort((a, b) => b[1] - a[1]).slice(0, 12);
    tip.replaceChildren(h("b", {}, `${xTitle} ${showX(x)}`),
      ...listed.map(([one, y]) => h("div", {}, swatch(one.index, one.dash), ` ${one.name} `, h("b", {}, showY(y)))));
    tip.hidden = false;
    const right = X(x) > width / 2;
    tip.style.left = right ? "" : `${X(x) + 10}px`;
    tip.style.right = right ? `${width - X(x) + 10}px` : "";
  };
  const hide = () => {
    at = -1;
    tip.hidden = true;
    line.setAttribute("visibility", "hidden");
    dots.replaceChildren();
  };
  picture.addEventListener("pointermove", (event) => {
    const x = event.clientX - picture.getBoundingClientRect().left;
    show(xs.reduce((best, value, i) => (Math.abs(X(value) - x) < Math.abs(X(xs[best]) - x) ? i : best), 0));
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(at < 0 ? (step > 0 ? 0 : xs.length - 1) : at + step);
  });
  return [tip];
}

// -- bars -----------------------------------------------------------------------------------------------------------

// items: [[name, value]], drawn in the order given; values from 0 to `top`.
export function bars({ items, label, xTitle, yTitle, showY, top, height = 220 }) {
  const draw = (width) => {
    const high = top ?? Math.max(1e-9, ...items.map(([, v]) => v ?? 0));
    const yTicks = ticks(0, high, 4);
    const left = 26 + LETTER * Math.max(...yTicks.map((t) => showY(t).length));
    const step = Math.min(64, (width - left - 8) / items.length);
    const right = left + step * items.length;
    const longest = Math.max(...items.map(([name]) => name.length));
    const named = longest * LETTER + 2 < step;
    const bottom = height - (named ? 40 : 24);
    const Y = (v) => bottom - (v / high) * (bottom - 8);
    return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
      yTicks.map((t) => [
        s("line", { class: "grid", x1: left, x2: right, y1: Y(t), y2: Y(t) }),
        s("text", { class: "tick", x: left - 6, y: Y(t) + 4, "text-anchor": "end" }, showY(t)),
      ]),
      items.map(([name, v], i) => s("g", {},
        s("title", {}, `${name}: ${v === null ? "not known" : showY(v)}`),
        s("rect", { x: left + i * step, y: 8, width: step, height: bottom - 8, fill: "transparent" }),
        s("rect", { class: "bar", x: left + i * step + step * 0.12, width: step * 0.76, y: Y(v ?? 0), height: Math.max(0, bottom - Y(v ?? 0)) }),
        named && s("text", { class: "tick", x: left + (i + 0.5) * step, y: bottom + 15, "text-anchor": "middle" }, name))),
      s("text", { class: "title", x: (left + right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle),
      s("text", { class: "title", x: 12, y: (8 + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(8 + bottom) / 2})` }, yTitle));
  };
  return fitted(draw);
}

// -- tables of circles and squares -----------------------------------------------------------------------------------

const short = (name, most = 14) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
const margin = (names) => 28 + LETTER * Math.max(...names.map((n) => short(n).length));

// Every n-th label, so that they do not run into one another.
const sparse = (step, need) => Math.max(1, Math.ceil(need / step));

function frame(width, across, down, { tall, least, high }) {
  const left = margin(down.names);
  const letters = LETTER * Math.max(...across.names.map((n) => short(n).length));
  const stepX = Math.max(least, Math.min(tall * 1.6, (width - left - 8) / across.names.length));
  const stepY = Math.max(least, Math.min(tall, high / down.names.length));
  const turned = letters + 6 > stepX && across.names.some((n) => n.length > 3);
  const foot = turned ? 30 + letters : 40;
  const w = left + stepX * across.names.length + 8;
  const height = 6 + stepY * down.names.length + foot;
  const X = (i) => left + (i + 0.5) * stepX;
  const Y = (j) => 6 + (j + 0.5) * stepY;
  const bottom = 6 + stepY * down.names.length;
  const everyX = sparse(stepX, turned ? 14 : letters + 6);
  const everyY = sparse(stepY, 13);
  const labels = [
    across.names.map((name, i) => i % everyX === 0 && s("text", {
      class: "tick", x: X(i), y: bottom + 15, "text-anchor": turned ? "end" : "middle",
      transform: turned ? `rotate(-90 ${X(i)} ${bottom + 11}) translate(-2 0)` : null,
    }, short(name))),
    down.names.map((name, j) => j % everyY === 0 && s("text", { class: "tick", x: left - 6, y: Y(j) + 4, "text-anchor": "end" }, short(name))),
    s("text", { class: "title", x: (left + w) / 2, y: height - 6, "text-anchor": "middle" }, across.title),
    LETTER * down.title.length < bottom && s("text", { class: "title", x: 12, y: (6 + bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(6 + bottom) / 2})` }, down.title),
  ];
  return { left, stepX, stepY, w, height, X, Y, bottom, labels };
}

// counts[client][class]; areas are in proportion to rows.
export function bubbles({ counts, clients, classes, label }) {
  const draw = (width) => {
    const wide = width > 600;
    const [across, down] = wide ? [clients, classes] : [classes, clients];
    const f = frame(width, across, down, { tall: 26, least: 7, high: 900 });
    const top = Math.max(1, ...counts.flat());
    const largest = Math.min(f.stepX, f.stepY) * 0.47;
    const dots = counts.flatMap((row, i) => row.map((n, j) => n > 0 && s("circle", {
      class: "bubble", cx: wide ? f.X(i) : f.X(j), cy: wide ? f.Y(j) : f.Y(i), r: Math.max(0.8, largest * Math.sqrt(n / top)),
    }, s("title", {}, `client ${clients.names[i]}, class ${classes.names[j]}: ${n.toLocaleString("en-GB")} rows`))));
    const rules = [
      across.names.map((_, i) => s("line", { class: "grid", x1: f.X(i), x2: f.X(i), y1: 6, y2: f.bottom })),
      down.names.map((_, j) => s("line", { class: "grid", x1: f.left, x2: f.w - 8, y1: f.Y(j), y2: f.Y(j) })),
    ];
    return s("svg", { width: f.w, height: f.height, viewBox: `0 0 ${f.w} ${f.height}`, role: "img", "aria-label": label }, rules, dots, f.labels);
  };
  return fitted(draw, { class: "chart scroll" });
}

// values[row][column], null where there is none; darker is more.
export function heat({ values, rows, columns, label, show, low, high, tall = 30 }) {
  const flat = values.flat().filter((v) => v !== null);
  if (!flat.length) return h("p", { class: "muted" }, "Nothing to draw yet.");
  const [v0, v1] = [low ?? Math.min(...flat), high ?? Math.max(...flat)];
  const draw = (width) => {
    const f = frame(Math.min(width, 1000), columns, rows, { tall, least: 4, high: 520 });
    const written = f.stepX > 34 && f.stepY > 17;
    const level = (v) => (v - v0) / (v1 - v0 || 1);
    const cells = values.flatMap((row, j) => row.map((v, i) => v !== null && s("g", {},
      s("title", {}, `${rows.title} ${rows.names[j]}, ${columns.title} ${columns.names[i]}: ${show(v)}`),
      s("rect", { class: "cell", x: f.X(i) - f.stepX / 2, y: f.Y(j) - f.stepY / 2, width: f.stepX, height: f.stepY,
        "fill-opacity": 0.04 + 0.96 * level(v) }),
      written && s("text", { class: `value ${level(v) > 0.85 ? "strong" : level(v) > 0.7 ? "middling" : ""}`, x: f.X(i), y: f.Y(j) + 4, "text-anchor": "middle" }, show(v)))));
    return s("svg", { width: f.w, height: f.height, viewBox: `0 0 ${f.w} ${f.height}`, role: "img", "aria-label": label }, cells, f.labels);
  };
  return h("figure", {}, fitted(draw, { class: "chart scroll" }),
    h("figcaption", { class: "scale muted" }, show(v0), h("span", { class: "ramp", "aria-hidden": "true" }), show(v1)));
}
