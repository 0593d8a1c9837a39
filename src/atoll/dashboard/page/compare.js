// Several runs side by side: curves with their spread over seeds, and the table.

import { swatch } from "./axes.js";
import { h, Part, select } from "./dom.js";
import { lines } from "./lines.js";
import { ask } from "./server.js";
import { asPercent, bytes, measure, number, percent, tick } from "./words.js";

const KINDS = { personal: "personal, after training", before: "personal, before training", generic: "generic", honest: "honest clients", training: "training samples, while training" };

export class Comparison {
  constructor(main, ids) {
    this.ids = ids;
    this.chosen = { measure: "accuracy", kind: "personal", axis: "round" };
    this.hidden = new Set();
    this.views = {}; // what is enlarged, by what is shown
    this.tools = new Part(h("div", { class: "row" }), (d) => this.drawTools(d));
    this.picture = new Part(h("section", {}), (found) => this.drawPicture(found));
    this.table = new Part(h("section", {}), (found) => drawTable(found));
    main.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← All runs")), h("h1", {}, "Comparison"), this.tools.element, this.picture.element, this.table.element);
  }

  title() {
    return "Comparison";
  }

  async refresh() {
    this.found = await ask(`/api/compare?ids=${this.ids}`);
    this.draw();
  }

  draw() {
    const options = this.options();
    this.tools.show(options);
    this.picture.show({ options, groups: this.found.groups, hidden: [...this.hidden] });
    this.table.show(this.found);
  }

  key(event) {
    if (event.key !== "Escape") return false;
    location.hash = "#/";
    return true;
  }

  set(name, value) {
    this.chosen[name] = value;
    this.draw();
  }

  // What there is to choose from, and what is chosen of it.
  options() {
    const { groups } = this.found;
    const measures = [...new Set(groups.flatMap((group) => Object.keys(group.curves)))];
    const name = measures.includes(this.chosen.measure) ? this.chosen.measure : measures[0];
    const kinds = Object.keys(KINDS).filter((kind) => groups.some((group) => group.curves[name]?.[kind]));
    const kind = kinds.includes(this.chosen.kind) ? this.chosen.kind : kinds[0];
    return { measures, name, kinds, kind, axis: this.chosen.axis };
  }

  drawTools({ measures, name, kinds, kind, axis }) {
    if (!measures.length) return null;
    return [
      select("Measure", measures.map((m) => [m, measure(m)]), name, (value) => this.set("measure", value)),
      select("Model", kinds.map((k) => [k, KINDS[k]]), kind, (value) => this.set("kind", value)),
      select("Against", [["round", "rounds"], ["bytes", "bytes sent"]], axis, (value) => this.set("axis", value)),
    ];
  }

  drawPicture({ groups, options: { name, kind, axis } }) {
    if (!name) return h("p", { class: "muted" }, "None of these runs has been evaluated yet.");
    const spent = axis === "bytes";
    const score = this.found.criterion;
    const show = asPercent(name, score) ? (v) => percent(v, 1) : (v) => number(v);
    const named = (group) => (kind === "generic" && group.averaged ? `~ ${group.name}` : group.name);
    const series = groups.map((group, index) => ({ group, index })).filter(({ group, index }) => group.curves[name]?.[kind] && !this.hidden.has(index))
      .map(({ group, index }) => {
        const { rounds, mean, low, high } = group.curves[name][kind];
        return { name: named(group), index, x: spent ? rounds.map((t) => group.bytes[t]) : rounds, y: mean, low, high };
      }).filter((one) => !spent || one.x.some((n) => n > 0));
    return [
      lines({ series, label: `${measure(name)} of ${series.length} methods`, xTitle: spent ? "bytes, up and down, all clients" : "round", yTitle: measure(name), showX: spent ? bytes : String, showY: show, tickY: asPercent(name, score) ? tick : show, log: spent, height: 360, view: (this.views[`${name} ${kind} ${axis}`] ??= {}) }),
      h("ul", { class: "legend" }, groups.map((group, index) => h("li", {}, h("button", {
        type: "button", class: "plain", "aria-pressed": String(!this.hidden.has(index)), title: "Show or hide",
        onclick: () => { if (!this.hidden.delete(index)) this.hidden.add(index); this.draw(); },
      }, swatch(index), named(group), h("small", {}, group.seeds.length > 1 ? ` ${group.seeds.length} seeds` : ` seed ${group.seeds[0]}`))))),
      groups.some((group) => group.seeds.length > 1) ? h("p", { class: "muted" }, "Lines are means over seeds; bands reach from the lowest seed to the highest.") : null,
    ].filter(Boolean);
  }
}

function drawTable({ groups, columns, baseline, warnings, notes }) {
  const families = columns.reduce((all, c) => (all.at(-1)?.name === c.family ? (all.at(-1).span++, all) : [...all, { name: c.family, span: 1 }]), []);
  return [
    warnings.map((warning) => h("p", { class: "problem" }, warning)),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Metrics side by side" }, h("table", { class: "metrics" },
      h("thead", {},
        h("tr", {}, h("th", { scope: "col", rowspan: 2 }, "Method"), h("th", { scope: "col", rowspan: 2, class: "number" }, "Seeds"), families.map((f) => h("th", { colspan: f.span, class: "family" }, f.name))),
        h("tr", {}, columns.map((c) => h("th", { scope: "col", class: "number" }, c.title)))),
      h("tbody", {}, groups.map((group, index) => h("tr", {},
        h("th", { scope: "row" }, swatch(index), group.runs.length === 1 ? h("a", { href: `#/run/${group.runs[0]}` }, group.name) : group.name, group.remark ? h("small", {}, group.remark) : null,
          group.runs.length > 1 ? h("small", {}, group.runs.map((id, i) => [i ? ", " : "seed ", h("a", { href: `#/run/${id}` }, `${group.seeds[i]}`)])) : null),
        h("td", { class: "number" }, `${group.seeds.length}`),
        group.cells.map((cell, i) => h("td", { class: group.leads[i] ? "number lead" : "number" }, cell)))),
        baseline.map((line) => h("tr", { class: "baseline" }, h("th", { scope: "row" }, line.name), h("td", { class: "number" }, `${line.seeds}`), line.cells.map((cell) => h("td", { class: "number" }, cell))))))),
    ["Means over seeds ± standard deviation. The best of each column is bold.", ...notes].map((note) => h("p", { class: "muted" }, note)),
  ].flat();
}
