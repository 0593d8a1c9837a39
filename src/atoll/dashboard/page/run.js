// One run: curves, clients, what travelled, what is kept.

import { swatch } from "./axes.js";
import { bars, bubbles, heat } from "./charts.js";
import { h, Part, select, table } from "./dom.js";
import { lines } from "./lines.js";
import { chip, progress, state } from "./list.js";
import { ask } from "./server.js";
import { asPercent, bytes, count, duration, inUnit, measure, number, percent, tick } from "./words.js";

const SLOWLY = 8000; // milliseconds between looks at what is large
const KINDS = { personal: ["personal models", null], before: ["personal, before training", "2 3"], generic: ["generic model", "6 4"], honest: ["honest clients", "9 3 2 3"], training: ["training", "1 3"] };
const AVERAGE = "~ average of personal models";
const CAUSES = { silent: "never answered", unreached: "was not reached", late: "came too late" };

const card = (title, value, ...more) => h("div", { class: "card" }, h("span", { class: "muted" }, title), h("b", {}, value), more);

// Tiles in rows of about equal length, so that none stands alone.
function tiles(...cards) {
  const box = h("div", { class: "cards" }, cards);
  new ResizeObserver(() => {
    const most = Math.max(1, Math.floor((box.clientWidth + 10) / 185));
    box.style.gridTemplateColumns = `repeat(${Math.ceil(box.children.length / Math.ceil(box.children.length / most))}, 1fr)`;
  }).observe(box);
  return box;
}

const digest = (text) => (text ? h("code", { title: text }, text.slice(0, 12)) : "–");

export class Run {
  constructor(main, id) {
    this.id = state.opened = id;
    this.measure = null; // the score that ranks the run, until another one is chosen
    this.row = null;
    this.views = {}; // what is enlarged, by measure
    this.parts = {
      head: (d) => this.head(d),
      measures: (d) => this.measures(d),
      curves: (d) => this.curves(d),
      clients: (d) => clients(d),
      incidents: (d) => incidents(d),
      privacy: (d) => privacy(d),
      traffic: (d) => traffic(d),
      contract: (d) => contract(d),
      audit: (d) => audit(d),
      holdings: (d) => holdings(d),
      heat: (d) => matrices(d),
      kept: (d) => kept(d),
      events: (d) => events(d),
      config: (d) => config(d),
    };
    for (const [name, draw] of Object.entries(this.parts)) this.parts[name] = new Part(h("section", { id: name }), draw);
    main.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← All runs")), ...Object.values(this.parts).map((part) => part.element));
    this.looked = 0;
    this.moment = "";
  }

  title() {
    return this.row ? `${this.row.method} · ${this.row.name}` : "Run";
  }

  async refresh() {
    const found = await ask(`/api/runs/${this.id}`);
    const moment = JSON.stringify([found.row.done, found.row.status]);
    this.row = found.row;
    this.found = found;
    this.measure ??= found.row.criterion?.name ?? "accuracy";
    this.parts.head.show({ row: found.row, facts: found.facts, incidents: found.incidents.counts, privacy: found.privacy });
    this.parts.measures.show({ names: Object.keys(found.curves.measures), chosen: this.measure });
    this.parts.curves.show({ ...found.curves, chosen: this.measure });
    this.parts.clients.show(found.clients);
    this.parts.incidents.show(found.incidents);
    this.parts.privacy.show(found.privacy);
    this.parts.traffic.show({ ...found.traffic, facts: found.facts });
    this.parts.holdings.show(found.holdings);
    this.parts.config.show({ text: found.config, facts: found.facts });
    if (moment !== this.moment && (found.row.status !== "running" || Date.now() - this.looked > SLOWLY)) {
      this.moment = moment;
      this.looked = Date.now();
      await this.more();
    }
  }

  async more() {
    const found = await ask(`/api/runs/${this.id}/contents`);
    this.parts.contract.show({ fields: found.contract });
    this.parts.audit.show(found.audit);
    this.parts.heat.show(found.heat);
    this.parts.kept.show({ checkpoints: found.checkpoints, exports: found.exports });
    this.parts.events.show(found.events);
  }

  key(event) {
    if (event.key !== "Escape") return false;
    location.hash = "#/";
    return true;
  }

  head({ row, facts, incidents: counts, privacy: budget }) {
    const spent = budget?.spent.at(-1)?.[1];
    const show = inUnit(row.criterion);
    const rounds = row.done === row.planned ? `${row.done}` : `${row.done} of ${row.planned}`;
    return [
      h("h1", {}, row.method || row.name, " ", chip(row.status)),
      h("p", { class: "muted" }, [row.name, row.data, row.partition, row.clients && count(row.clients, "client"), [...new Set(row.models)].join(", "), row.seed === null ? "" : `seed ${row.seed}`].filter(Boolean).join(" · ")),
      row.problems.map((problem) => h("p", { class: "problem", role: "alert" }, problem)),
      tiles(
        card("Rounds", rounds, row.status === "running" ? progress(row) : null),
        card(`Personal ${row.criterion?.title ?? "accuracy"}, latest`, show(facts.now ?? facts.final)),
        card(facts.chosen_round ? `Chosen by validation, round ${facts.chosen_round}` : "Chosen by validation", show(facts.chosen)),
        card("Worst 10 % of clients", show(facts.worst_decile)),
        facts.generic === null ? null : card(facts.averaged ? AVERAGE : "Generic model", show(facts.generic)),
        card("Bytes, all clients", `↑\u00a0${bytes(row.up)} ↓\u00a0${bytes(row.down)}`),
        !row.left ? card("Time", duration(row.seconds)) : card("Time, and left", `${duration(row.seconds)} + ${duration(row.left)}`),
        counts.dropped ? card("Answers that did not come", `${counts.dropped}`) : null,
        counts.rejected ? card("Uploads rejected", `${counts.rejected}`) : null,
        spent === undefined ? null : card(`Privacy spent, of ε:δ ${budget.allowed}`, `ε ${number(spent)}`)),
    ].flat();
  }

  // Apart from the curves, so that the list of measures stays open while they grow.
  measures({ names }) {
    const choose = (name) => { this.measure = name; this.refresh(); };
    return h("div", { class: "row" }, h("h2", {}, "Curves"),
      names.length ? select("Measure", names.map((name) => [name, measure(name)]), this.measure, choose) : h("span", { class: "muted" }, "No round has been evaluated yet."));
  }

  // The chosen measure, and the losses beside it.
  curves({ rounds, measures }) {
    const chosen = this.measure in measures ? this.measure : Object.keys(measures)[0];
    if (!chosen) return null;
    const shown = chosen !== "loss" && measures.loss ? [chosen, "loss"] : [chosen];
    return h("div", { class: "pair" }, shown.map((name) => h("div", {}, this.curve(name, rounds, measures))));
  }

  curve(chosen, rounds, measures) {
    const score = this.row.criterion;
    const show = asPercent(chosen, score) ? (v) => percent(v, 1) : (v) => number(v);
    const series = Object.entries(KINDS).filter(([kind]) => measures[chosen][kind])
      .map(([kind, [name, dash]], index) => ({ name: kind === "generic" && this.row.averaged ? AVERAGE : name, dash, index, x: rounds, y: measures[chosen][kind] }));
    const last = series.map((one) => `${one.name} ${show(one.y.findLast((v) => v !== null))}`).join(", ");
    return [
      lines({ series, label: `${measure(chosen)} by round; last: ${last}`, xTitle: "round", yTitle: chosen === "loss" ? "loss" : `test ${measure(chosen)}`.replace("test val", `validation ${score?.title ?? "accuracy"}`), showX: String, showY: show, tickY: asPercent(chosen, score) ? tick : show, view: (this.views[chosen] ??= {}) }),
      h("ul", { class: "legend" }, series.map((one) => h("li", {}, swatch(one.index, one.dash), one.name))),
    ];
  }
}

// -- over clients -----------------------------------------------------------------------------------------------------

function clients({ round, criterion: score, latest, names, rounds, table: over }) {
  if (!latest.length) return null;
  const rank = ([, v]) => (v === null ? Infinity : score.higher ? -v : v);
  const ranked = [...latest].sort((a, b) => rank(a) - rank(b));
  const show = inUnit(score, 0);
  const high = score.percent ? 1 : Math.max(1e-9, ...latest.map(([, v]) => v ?? 0), ...over.flat().map((v) => v ?? 0));
  return [
    h("h2", {}, "Clients"),
    h("p", { class: "muted" }, `Each client's own model on its test samples after round ${round}, best first. While a run goes on, these are the figures of its latest checkpoint.`),
    bars({ items: ranked, label: `${score.title} of ${latest.length} clients, best first`, xTitle: "clients", yTitle: score.title, showY: show, top: high }),
    rounds.length > 1 ? h("details", { open: latest.length <= 40 }, h("summary", {}, "Round by round"),
      heat({ values: over, rows: { title: "client", names }, columns: { title: "round", names: rounds.map(String) }, label: `${score.title} by client and round`, show, low: 0, high, tall: 18 })) : null,
  ].filter(Boolean);
}

function incidents({ counts, latest, excluded }) {
  if (!latest.length && !excluded.length) return null;
  const words = { rejected: "rejected", dropped: "did not answer", not_finite: "kept its old state" };
  const told = Object.entries(counts).filter(([, n]) => n).map(([kind, n]) => `${n} ${kind}`).join(", ");
  return [
    h("h2", {}, "What went wrong"),
    h("p", { class: "muted" }, told, excluded.length ? `. Excluded: ${excluded.join(", ")}` : ""),
    h("details", { open: latest.length <= 12 }, h("summary", {}, count(latest.length, "incident")),
      table(["Round", "Client", "What", "Why"], latest.map((one) => [`${one.round}`, one.client, words[one.kind], CAUSES[one.why] ?? one.why]), { caption: "Incidents", numeric: [0] })),
  ];
}

function privacy(found) {
  if (!found) return null;
  const x = found.spent.map(([t]) => t);
  const y = found.spent.map(([, epsilon]) => epsilon);
  return [
    h("h2", {}, "Privacy"),
    found.allowed ? h("p", { class: "muted" }, `Budget ε:δ ${found.allowed}`) : null,
    x.length ? lines({ series: [{ name: "spent", index: 1, x, y }], label: `epsilon spent by round; last ${number(y.at(-1))}`, xTitle: "round", yTitle: "ε spent", showX: String, showY: (v) => number(v), zero: true, height: 200 }) : null,
    found.statement.length ? h("ul", {}, found.statement.map((said) => h("li", {}, said))) : null,
  ].filter(Boolean);
}

// -- what travelled ---------------------------------------------------------------------------------------------------

function traffic({ rounds, up, down, facts }) {
  if (!rounds.length) return null;
  const series = [{ name: "up, from clients", index: 0, x: rounds, y: up }, { name: "down, to clients", index: 1, dash: "6 4", x: rounds, y: down }];
  return [
    h("h2", {}, "What travelled"),
    h("p", { class: "muted" }, `One client sends ${bytes(facts.each_up)} and receives ${bytes(facts.each_down)} in a round. The lines add up all clients since the evaluation before.`),
    lines({ series, label: "bytes by round", xTitle: "round", yTitle: "bytes", showX: String, showY: bytes, zero: true, height: 220 }),
    h("ul", { class: "legend" }, series.map((one) => h("li", {}, swatch(one.index, one.dash), one.name))),
  ];
}

function contract({ fields }) {
  if (!fields) return h("p", { class: "muted" }, "The method of this run is not an installed one, so what it declares to send is not known here. See atoll audit.");
  const way = { up: "↑\u00a0up", down: "↓\u00a0down" };
  return [
    h("h3", {}, "What may leave a client, and reach it"),
    fields.length ? table(["Way", "Field", "Type", "Meaning"], fields.map((f) => [way[f.way], h("code", {}, f.field), f.type, f.meaning]), { caption: "Fields that travel" })
      : h("p", { class: "muted" }, "Nothing: clients keep to themselves."),
  ];
}

function audit(found) {
  if (!found) return null;
  return [
    h("h3", {}, "Audit log"),
    h("p", { class: found.sound ? "muted" : "problem" }, found.verdict),
    found.latest.length ? h("details", {}, h("summary", {}, `The latest ${count(found.latest.length, "contribution")}`),
      table(["Round", "Phase", "Client", "Bytes", "SHA-256", "Verdict"],
        found.latest.map((r) => [`${r.round}`, `${r.exchange}`, r.client, bytes(r.bytes), digest(r.sha256), r.verdict]), { caption: "Contributions", numeric: [0, 1, 3] })) : null,
  ].filter(Boolean);
}

// -- data and knowledge -----------------------------------------------------------------------------------------------

function holdings({ group, clients: who, classes, all, train, totals, notes }) {
  if (!who.length || !classes.length) return null;
  const of = (shown, total, noun) => (shown < total ? `${shown} of ${count(total, noun)}` : count(total, noun));
  const by = group ? `client and ${group}` : "client";
  return [
    h("h2", {}, `Samples by ${by}`),
    h("p", { class: "muted" }, `${totals.train.toLocaleString("en-GB")} training, ${totals.val.toLocaleString("en-GB")} validation and ${totals.test.toLocaleString("en-GB")} test samples. Areas show training samples.`),
    bubbles({ counts: train, clients: { title: of(who.length, all.clients, "client"), names: who }, classes: { title: of(classes.length, all.classes, group || "sample"), names: classes }, label: `training samples by ${by}` }),
    notes.length ? h("ul", {}, notes.map((note) => h("li", {}, note))) : null,
  ].filter(Boolean);
}

// Shares have two places after the point, other numbers two digits that count.
const entry = (values) => (values.flat().every((v) => Math.abs(v) <= 1) ? (v) => v.toFixed(2) : (v) => number(v, 2));

function matrices({ round, matrices: found, problem }) {
  if (problem) return [h("h2", {}, "What the server knows"), h("p", { class: "problem" }, problem)];
  if (!found.length) return null;
  return [
    h("h2", {}, "What the server knows"),
    h("p", { class: "muted" }, `In the checkpoint after round ${round}.`),
    h("div", { class: "pair" }, found.map((m) => h("div", {}, h("h3", {}, h("code", {}, m.name)), h("p", { class: "muted" }, m.title),
      heat({ values: m.values, rows: { title: "", names: m.labels }, columns: { title: "", names: m.labels }, label: m.title || m.name, show: entry(m.values) })))),
  ];
}

// -- what is kept -----------------------------------------------------------------------------------------------------

function kept({ checkpoints, exports }) {
  if (!checkpoints.length && !exports.length) return null;
  return [
    h("h2", {}, "Saved models"),
    checkpoints.map((c) => h("details", {}, h("summary", {}, `Checkpoint ${c.name}`),
      c.problem ? h("p", { class: "problem" }, c.problem) : null,
      table(["File", "Bytes", "SHA-256"], c.files.map((f) => [h("code", {}, f.name), bytes(f.size), digest(f.sha256)]), { caption: c.name, numeric: [1] }))),
    exports.length ? [h("h3", {}, "Exported"),
      table(["Client", "Form", "Model", "Round", "Bytes", "Gap", "SHA-256"],
        exports.map((m) => [m.client, m.form, m.architecture, `${m.round ?? "–"}`, bytes(m.size), number(m.gap, 2), m.problem ?? digest(m.sha256)]), { caption: "Exported models", numeric: [3, 4, 5] }),
      h("details", {}, h("summary", {}, "Manifests"), exports.map((m) => [h("h4", {}, m.folder), h("pre", { tabindex: "0" }, m.text)]))] : null,
  ].flat(Infinity).filter(Boolean);
}

function events(found) {
  if (!found.length) return null;
  const when = (seconds) => (seconds === null ? "–" : new Date(1000 * seconds).toLocaleString("en-GB"));
  return [h("h2", {}, "Between the sites"), h("details", {}, h("summary", {}, `The latest ${count(found.length, "event")}`),
    table(["Time", "Event", "What"], found.map((e) => [when(e.time), e.event, e.text]), { caption: "Events" }))];
}

function config({ text, facts }) {
  if (!text) return null;
  const made = [facts.version && `Atoll ${facts.version}`, facts.digest && `digest ${facts.digest.slice(0, 12)}`].filter(Boolean).join(" · ");
  return [h("h2", {}, "Configuration"), made ? h("p", { class: "muted" }, made) : null, h("details", {}, h("summary", {}, "config.yaml"), h("pre", { tabindex: "0" }, text))].filter(Boolean);
}
