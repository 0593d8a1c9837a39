// Charts of a run's clients, classes and matrices. Each fits the width it is given and is drawn again when that changes.

import { fitted, LETTER, ticks } from "./axes.js";
import { h, s } from "./dom.js";

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
    }, s("title", {}, `client ${clients.names[i]}, class ${classes.names[j]}: ${n.toLocaleString("en-GB")} samples`))));
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
