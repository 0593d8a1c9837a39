// The report's figures of lines, drawn anew with their values under the pointer. Without scripts, the pictures stay.

import { swatch } from "./axes.js";
import { h, markCut, s } from "./dom.js";
import { lines } from "./lines.js";
import { bytes, number } from "./words.js";

const DASHES = { solid: null, dashed: "6 4", dashdot: "9 3 2 3", dotted: "2 3" };
const REACH = 24; // pixels from the pointer to a mark
const hidden = new Set(); // names of methods and kinds of lines, in every figure of the page
const figures = [];
const HINT = "Point at a picture to read its values. Press a name to hide or show its lines in all pictures. Mark a part with the mouse to enlarge it.";

function figure(place) {
  const chart = JSON.parse(place.querySelector("script").textContent);
  const views = chart.panels.map(() => ({}));
  const box = h("div", { class: "lines" });
  const draw = () => box.replaceChildren(legend(chart), ...chart.panels.map((panel, i) => drawPanel(chart, panel, views[i])));
  if (!figures.length) place.prepend(h("p", { class: "quiet" }, HINT));
  place.append(box);
  place.classList.add("live");
  figures.push(draw);
  draw();
}

function drawPanel({ x, y, names }, panel, view) {
  const series = panel.lines.filter((line) => !hidden.has(line.name) && !hidden.has(line.dash))
    .map((line) => ({ ...line, index: names.indexOf(line.name), dash: DASHES[line.dash] }));
  const showX = x.names.length ? (v) => x.names[v] ?? "" : x.bytes ? bytes : (v) => number(v, 4);
  const showY = y.percent ? (v) => v.toFixed(2) : (v) => number(v, 4);
  const tickY = (v) => String(Number(v.toPrecision(6)));
  return h("div", {}, panel.title ? h("h4", {}, panel.title) : null,
    lines({ series, label: `${y.title} against ${x.title}`, xTitle: x.title, yTitle: y.title, showX, showY, tickY, log: x.log,
      whole: x.whole || x.names.length > 0, goal: panel.goal, view, height: 380 }));
}

function legend({ names, kinds, panels }) {
  const used = new Set(panels.flatMap((panel) => panel.lines.map((line) => line.dash)));
  const entry = (key, ...shown) => h("li", {}, h("button", { type: "button", class: "plain", title: "Show or hide",
    "aria-pressed": String(!hidden.has(key)), onclick: () => toggle(key, shown.at(-1)) }, shown));
  const stroke = (dash) => s("svg", { class: "swatch", width: 28, height: 12, "aria-hidden": "true" },
    s("line", { x1: 1, x2: 27, y1: 6, y2: 6, stroke: "var(--muted)", "stroke-width": 2.5, "stroke-dasharray": DASHES[dash] }));
  const drawn = panels.flatMap((panel) => panel.lines);
  const level = (name) => drawn.every((line) => line.name !== name || line.level !== undefined);
  const sign = (name, i) => (level(name) ? swatch(i, DASHES.dotted) : swatch(i));
  return h("ul", { class: "legend" }, names.map((name, i) => entry(name, sign(name, i), name)),
    Object.entries(kinds).filter(([dash]) => used.has(dash)).map(([dash, words]) => entry(dash, stroke(dash), words)),
    panels.some(({ goal }) => goal !== null) ? h("li", {}, stroke("dotted"), "target") : null);
}

// What is hidden in one figure is hidden in all of them, and the button that was pressed keeps the focus.
function toggle(key, words) {
  const place = document.activeElement?.closest("figure");
  if (!hidden.delete(key)) hidden.add(key);
  for (const draw of figures) draw();
  [...(place?.querySelectorAll(".legend button") ?? [])].find((one) => one.textContent === words)?.focus({ preventScroll: true });
}

// In a picture whose marks have titles, the mark nearest to the pointer shows its own: titles alone come late, and need a hit.
function marked(place) {
  const tip = h("div", { class: "tip", hidden: true, role: "status" });
  const texts = new Map([...place.querySelectorAll("g.value")].map((one) => [one, one.querySelector("title").textContent]));
  for (const one of texts.keys()) one.querySelector("title").remove(); // or it would be shown twice
  place.append(tip);
  const away = (box, { clientX: x, clientY: y }) =>
    box.width + box.height ? Math.hypot(Math.max(box.left - x, 0, x - box.right), Math.max(box.top - y, 0, y - box.bottom)) : Infinity;
  const show = (event) => {
    const marks = [...texts].map(([one, text]) => [away(one.getBoundingClientRect(), event), text]);
    const least = Math.min(...marks.map(([distance]) => distance));
    tip.hidden = least > REACH;
    if (tip.hidden) return;
    const nearest = new Set(marks.filter(([distance]) => distance === least).map(([, text]) => text));
    tip.replaceChildren(...[...nearest].map((text) => h("div", {}, text))); // several, if marks lie over one another
    const edge = place.getBoundingClientRect();
    const right = event.clientX > edge.left + edge.width / 2;
    tip.style.top = `${event.clientY - edge.top + 14}px`;
    tip.style.left = right ? "" : `${event.clientX - edge.left + 10}px`;
    tip.style.right = right ? `${edge.right - event.clientX + 10}px` : "";
  };
  for (const kind of ["pointermove", "pointerdown"]) place.addEventListener(kind, show);
  place.addEventListener("pointerleave", () => { tip.hidden = true; });
}

document.querySelectorAll("figure.with-values").forEach(figure);
document.querySelectorAll("figure:not(.with-values):has(g.value)").forEach(marked);
document.querySelectorAll(".scroll:has(> table)").forEach(markCut);
