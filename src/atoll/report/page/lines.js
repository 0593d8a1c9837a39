// Lines over rounds or costs, with their values under the pointer, and a part of them enlarged.

import { colour, decades, fitted, LETTER, mark, swatch, ticks, whole } from "./axes.js";
import { h, s } from "./dom.js";

const NEAR = 12; // pixels; a shorter stroke of the pointer does not limit its axis

// series: [{ name, index, dash, x, y, low, high }], or with `level` in place of x and y; y may have gaps (null).
// goal: a value to be reached. view: the part that is enlarged, { end } or { x, y }; who keeps it keeps the enlargement.
export function lines({ series, tickY, height = 300, view = {}, ...rest }) {
  const drawn = series.filter((one) => one.level !== undefined || one.y.some((v) => v !== null));
  if (!drawn.length) return h("p", { class: "muted" }, "Nothing to draw yet.");
  const look = (part) => {
    for (const name of ["end", "x", "y"]) view[name] = part[name];
    chart.redraw();
  };
  const chart = fitted((width) => linesAt(width, { series: drawn, tickY: tickY ?? rest.showY, height, view, look, ...rest }));
  return chart;
}

function linesAt(width, { series, label, xTitle, yTitle, showX, showY, tickY, log, zero, whole: wholeX = true, height, goal, view, look }) {
  const levels = series.filter((one) => one.level !== undefined);
  const curves = series.filter((one) => one.level === undefined);
  const all = [...new Set(curves.flatMap((one) => one.x.filter((x) => !log || x > 0)))].sort((a, b) => a - b);
  const [first, last] = view.end ? [all[Math.floor((all.length * 2) / 3)], all.at(-1)] : view.x ?? [all[0], all.at(-1)];
  const xs = all.filter((x) => x >= first && x <= last);
  const [y0, y1] = view.y ?? heights(curves, levels, (x) => x >= first && x <= last, zero && !view.end && !view.x);
  const yTicks = ticks(y0, y1, height / 48);
  const left = 26 + LETTER * Math.max(...yTicks.map((t) => tickY(t).length));
  const box = { left, right: width - 14, top: 10, bottom: height - 42 };
  const place = log ? Math.log10 : (v) => v;
  const [x0, x1] = [place(xs[0]), place(xs.at(-1))];
  const X = (x) => box.left + 6 + ((place(x) - x0) / (x1 - x0 || 1)) * (box.right - box.left - 12) + (x1 === x0 ? (box.right - box.left) / 2 : 0);
  const Y = (y) => box.bottom - ((y - y0) / (y1 - y0)) * (box.bottom - box.top);
  const room = Math.max(2, Math.floor((box.right - box.left) / 70));
  const even = () => ticks(xs[0], xs.at(-1), room);
  const xTicks = xs.length < 2 ? xs : log ? decades(xs[0], xs.at(-1)) : wholeX ? whole(even()) : even();
  const across = (y, attributes) => s("line", { x1: box.left, x2: box.right, y1: Y(y), y2: Y(y), ...attributes });

  const picture = s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": label },
    yTicks.map((t) => [
      across(t, { class: "grid" }),
      s("text", { class: "tick", x: box.left - 6, y: Y(t) + 4, "text-anchor": "end" }, tickY(t)),
    ]),
    xTicks.map((t) => s("text", { class: "tick", x: X(t), y: box.bottom + 17, "text-anchor": "middle" }, showX(t))),
    s("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    s("text", { class: "title", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle),
    s("text", { class: "title", x: 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle",
      transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})` }, yTitle),
    inside(box, [
      goal === undefined || goal === null ? null : across(goal, { class: "goal" }),
      levels.map((one) => across(one.level, { class: "level", stroke: colour(one.index), "stroke-width": 2, "stroke-dasharray": one.dash })),
      curves.map((one, i) => {
        const wider = covers(curves, i);
        return [band(one, X, Y, log), ...strokes(one, X, Y, log, wider), ...marks(one, X, Y, log, wider)];
      }),
    ]));
  const tip = pointer(picture, { curves, levels, xs, X, Y, box, showX, showY, xTitle, width });
  enlarge(picture, { xs, X, Y, box, y0, y1, look });
  return [picture, tip, tools(all, view, look)];
}

// Lowest and highest value in the part that is shown, with some room.
function heights(curves, levels, shown, zero) {
  const ys = curves.flatMap((one) => one.x.flatMap((x, i) => (shown(x) ? [one.y[i], one.low?.[i], one.high?.[i]] : [])));
  const known = [...ys, ...levels.map((one) => one.level)].filter((v) => v !== null && v !== undefined);
  const [low, high] = [zero ? 0 : Math.min(...known), Math.max(...known)];
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  return [low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad];
}

// An inner picture cuts off what lies outside the axes.
function inside({ left, right, top, bottom }, children) {
  const [x, y, width, height] = [left - 4, top - 6, right - left + 8, bottom - top + 10];
  return s("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}` }, children);
}

// Mark a part with the mouse to enlarge it; a double click shows everything again.
function enlarge(picture, { xs, X, Y, box, y0, y1, look }) {
  let from = null;
  const frame = s("rect", { class: "frame", visibility: "hidden" });
  picture.append(frame);
  const at = (event) => {
    const edge = picture.getBoundingClientRect();
    const within = (v, low, high) => Math.max(low, Math.min(high, v));
    return [within(event.clientX - edge.left, box.left, box.right), within(event.clientY - edge.top, box.top, box.bottom)];
  };
  const corners = (to) => [[from[0], to[0]].sort((a, b) => a - b), [from[1], to[1]].sort((a, b) => a - b)];
  picture.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return;
    from = at(event);
    picture.setPointerCapture(event.pointerId);
    event.preventDefault(); // or the text of the axes would be selected
  });
  picture.addEventListener("pointermove", (event) => {
    if (!from) return;
    const [[left, right], [top, bottom]] = corners(at(event));
    for (const [name, value] of Object.entries({ x: left, y: top, width: right - left, height: bottom - top, visibility: "visible" })) frame.setAttribute(name, value);
  });
  picture.addEventListener("pointerup", (event) => {
    if (!from) return;
    const [[left, right], [top, bottom]] = corners(at(event));
    from = null;
    frame.setAttribute("visibility", "hidden");
    const chosen = xs.filter((x) => X(x) >= left && X(x) <= right);
    const value = (pixel) => y0 + ((box.bottom - pixel) / (box.bottom - box.top)) * (y1 - y0);
    const x = right - left < NEAR || chosen.length < 2 ? [xs[0], xs.at(-1)] : [chosen[0], chosen.at(-1)];
    const y = bottom - top < NEAR ? undefined : [value(bottom), value(top)];
    if (y || right - left >= NEAR) look({ x: xs.length ? x : undefined, y });
  });
  picture.addEventListener("dblclick", () => look({}));
}

function tools(all, view, look) {
  const enlarged = view.end || view.x || view.y;
  if (!enlarged && all.length < 4) return [];
  const hint = "Or mark a part of the picture with the mouse; a double click shows everything again.";
  return h("div", { class: "zoom" },
    all.length < 4 ? null : h("button", { type: "button", title: hint, "aria-pressed": String(Boolean(view.end)), onclick: () => look({ end: true }) }, "Zoom to the end"),
    enlarged ? h("button", { type: "button", onclick: () => look({}) }, "Show all") : null);
}

const points = (one, log) => one.x.map((x, i) => [x, one.y[i], i]).filter(([x, y]) => y !== null && (!log || x > 0));

function band(one, X, Y, log) {
  if (!one.low || one.low.every((v, i) => v === one.high[i])) return null;
  const at = points(one, log);
  const over = at.map(([x, , i]) => `${X(x)},${Y(one.high[i])}`);
  const under = at.map(([x, , i]) => `${X(x)},${Y(one.low[i])}`).reverse();
  return s("polygon", { points: [...over, ...under].join(" "), fill: colour(one.index), opacity: 0.16 });
}

// The number of equal lines that will be drawn over the i-th one: it is wider, so that it can be seen below them.
function covers(curves, i) {
  const form = ({ x, y }) => JSON.stringify([x, y]);
  return curves.slice(i + 1).filter((other) => form(other) === form(curves[i])).length;
}

function strokes(one, X, Y, log, wider) {
  const at = points(one, log).map(([x, y]) => `${X(x)},${Y(y)}`).join(" ");
  return [s("polyline", { points: at, fill: "none", stroke: colour(one.index), "stroke-width": 2 + 2.5 * wider, "stroke-dasharray": one.dash })];
}

function marks(one, X, Y, log, wider) {
  const at = points(one, log);
  const every = Math.max(1, Math.ceil(at.length / 12));
  return at.filter((_, i) => i % every === 0 || i === at.length - 1).map(([x, y]) => mark(one.index, X(x), Y(y), 3.4 + 1.8 * wider));
}

// The values at one place on the axis, by mouse or by arrow keys.
function pointer(picture, { curves, levels, xs, X, Y, box, showX, showY, xTitle, width }) {
  const line = s("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  const dots = s("g", {});
  picture.append(line, dots);
  const tip = h("div", { class: "tip", hidden: true, role: "status" });
  let at = -1;
  const show = (i) => {
    if (!xs.length) return;
    at = Math.max(0, Math.min(xs.length - 1, i));
    const x = xs[at];
    const found = curves.map((one) => [one, one.y[one.x.indexOf(x)]]).filter(([, y]) => y !== null && y !== undefined);
    const visible = found.filter(([, y]) => Y(y) >= box.top && Y(y) <= box.bottom);
    line.setAttribute("x1", X(x));
    line.setAttribute("x2", X(x));
    line.setAttribute("visibility", "visible");
    dots.replaceChildren(...visible.map(([one, y]) => mark(one.index, X(x), Y(y), 5)));
    const listed = [...found, ...levels.map((one) => [one, one.level])].sort((a, b) => b[1] - a[1]).slice(0, 12);
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
  return tip;
}
