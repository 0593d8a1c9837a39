// The list of runs: filter, sort, choose.

import { h, Part, select } from "./dom.js";
import { kept, remember } from "./kept.js";
import { ask } from "./server.js";
import { bytes, count, date, duration, inUnit, STATUS, titled } from "./words.js";

const AT_ONCE = 300; // rows that are drawn before somebody asks for more

const COLUMNS = [
  { key: "name", title: "Run", of: (run) => `${run.method} ${run.name}`, up: true },
  { key: "data", title: "Data", of: (run) => `${run.data} ${run.partition}`, up: true },
  { key: "clients", title: "Clients", of: (run) => run.clients, number: true },
  { key: "done", title: "Rounds", of: (run) => run.done, number: true },
  { key: "status", title: "Status", of: (run) => Object.keys(STATUS).indexOf(run.status), up: true },
  { key: "score", title: "Score", of: (run) => run.score, number: true },
  { key: "bytes", title: "Bytes", of: (run) => (run.up === null ? null : run.up + run.down), number: true },
  { key: "seconds", title: "Time", of: (run) => run.seconds, number: true },
  { key: "began", title: "Began", of: (run) => run.began, up: false },
];
const OPTIONAL = COLUMNS.slice(1);

// Kept while the page is open, whatever is looked at in between; what `keep` names also over reloads.
export const state = {
  text: "", method: "", status: "", most: AT_ONCE, chosen: new Set(), opened: null, open: new Set(),
  ...kept({ sort: "began", up: false, grouped: true, hidden: [] }),
};
const keep = () => remember({ sort: state.sort, up: state.up, grouped: state.grouped, hidden: state.hidden });
const shows = (key) => !state.hidden.includes(key);

const genericScore = (run) => `generic ${run.averaged ? "~" : ""}${inUnit(run.criterion)(run.generic)}`;

export function chip(status) {
  const [sign, word] = STATUS[status] ?? ["?", status];
  return h("span", { class: `chip ${status}` }, h("span", { class: "sign", "aria-hidden": "true" }, sign), word);
}

export function progress(run) {
  return h("progress", { max: run.planned || 1, value: run.done, "aria-label": `${run.done} of ${run.planned} rounds` });
}

export function visible(runs) {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const column = COLUMNS.find((c) => c.key === state.sort);
  const has = (run) => {
    const all = [run.name, run.method, run.data, run.partition, run.status, `seed ${run.seed}`, ...run.models].join(" ").toLowerCase();
    return words.every((word) => all.includes(word));
  };
  const base = (run) => run.method.split(/[:+]/)[0];
  const kept = runs.filter((run) => (!state.method || base(run) === state.method) && (!state.status || run.status === state.status) && has(run));
  const sign = state.up ? 1 : -1;
  const order = (a, b) => {
    const [x, y] = [column.of(a), column.of(b)];
    if (x === null || y === null) return (x === null) - (y === null); // what is not known comes last, either way
    return sign * (typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y);
  };
  return kept.sort((a, b) => order(a, b) || a.name.localeCompare(b.name, "en", { numeric: true }));
}

// Runs that differ only in their seeds become one entry, at the place of the first of them.
function gather(runs) {
  const alike = new Map();
  for (const run of runs) {
    const folder = run.name.slice(0, run.name.lastIndexOf("/") + 1);
    const again = (n) => JSON.stringify([folder, run.alike, n]);
    let n = 0; // the same seed again is no further seed
    while (alike.get(again(n))?.some((other) => other.seed === run.seed)) n += 1;
    const key = run.status === "damaged" ? run.id : again(n);
    alike.set(key, [...(alike.get(key) ?? []), run]);
  }
  return [...alike].map(([key, members]) => ({ key, members }));
}

const sum = (values) => (values.some((v) => v === null) ? null : values.reduce((a, b) => a + b, 0));
const mean = (values) => (sum(values) === null ? null : sum(values) / values.length);

export class List {
  constructor(main) {
    this.runs = [];
    this.back = state.opened; // where one left; an earlier list may still wait for an answer, and must not take it
    state.opened = null;
    this.filter = h("input", {
      type: "search", placeholder: "Filter (press /)", "aria-label": "Filter", value: state.text, autocomplete: "off",
      oninput: () => { state.text = this.filter.value; state.most = AT_ONCE; this.draw(); },
    });
    this.tools = new Part(h("div", { class: "tools" }), (known) => this.drawTools(known));
    this.choice = new Part(h("div", { class: "choice", "aria-live": "polite" }), (chosen) => this.drawChoice(chosen));
    this.body = new Part(h("div", {}), (shown) => this.drawTable(shown));
    main.replaceChildren(h("h1", { class: "hidden" }, "Runs"), h("div", { class: "toolbar" }, this.filter, this.tools.element), this.choice.element, this.body.element);
  }

  title() {
    return "Runs";
  }

  async refresh() {
    const answer = await ask("/api/runs");
    this.runs = answer.runs;
    this.averaged = answer.averaged;
    const here = new Set(this.runs.map((run) => run.id));
    for (const id of state.chosen) if (!here.has(id)) state.chosen.delete(id);
    this.draw();
    if (this.back) this.at(this.back, "link")?.focus();
    this.back = null;
    return answer;
  }

  draw() {
    const methods = [...new Set(this.runs.map((run) => run.method.split(/[:+]/)[0]))].filter(Boolean).sort();
    const statuses = Object.keys(STATUS).filter((name) => this.runs.some((run) => run.status === name));
    this.tools.show({ methods, statuses, method: state.method, status: state.status, sort: state.sort, up: state.up, grouped: state.grouped, hidden: state.hidden });
    this.choice.show([...state.chosen]);
    const found = visible(this.runs);
    const focus = document.activeElement?.closest?.("[data-id]")?.dataset.id;
    const kind = document.activeElement?.dataset?.kind;
    // Whoever types a filter looks for single runs.
    const entries = state.grouped && !state.text ? gather(found) : found.map((run) => ({ key: run.id, members: [run] }));
    this.body.show({
      entries: entries.slice(0, state.most), more: entries.length > state.most, found: found.length, all: this.runs.length,
      chosen: [...state.chosen], sort: state.sort, up: state.up, hidden: state.hidden, open: [...state.open],
    });
    if (focus && kind && document.activeElement === document.body) this.at(focus, kind)?.focus({ preventScroll: true });
  }

  at(id, kind) {
    return this.body.element.querySelector(`[data-id="${CSS.escape(id)}"] [data-kind="${kind}"]`);
  }

  drawTools({ methods, statuses }) {
    const set = (name) => (value) => { state[name] = value; state.most = AT_ONCE; this.draw(); };
    return [
      select("Method", [["", "all"], ...methods.map((m) => [m, m])], state.method, set("method")),
      select("Status", [["", "all"], ...statuses.map((name) => [name, name])], state.status, set("status")),
      h("label", { class: "field" }, h("input", { type: "checkbox", checked: state.grouped, onchange: (event) => { state.grouped = event.target.checked; keep(); this.draw(); } }), h("span", {}, "Group seeds")),
      h("details", { class: "columns" }, h("summary", {}, "Columns"), h("div", {}, OPTIONAL.map((c) => h("label", {}, h("input", {
        type: "checkbox", checked: shows(c.key), onchange: (event) => { state.hidden = event.target.checked ? state.hidden.filter((key) => key !== c.key) : [...state.hidden, c.key]; keep(); this.draw(); },
      }), ` ${c.title}`)))),
      select("Sort by", COLUMNS.map((c) => [c.key, c.title]), state.sort, (key) => this.sort(key), { class: "field narrow" }),
    ];
  }

  drawChoice(chosen) {
    if (!chosen.length) return null;
    return [
      h("span", {}, `${count(chosen.length, "run")} chosen`),
      h("a", { class: "button primary", href: `#/compare/${chosen.join(",")}` }, "Compare"),
      h("button", { type: "button", onclick: () => { state.chosen.clear(); this.draw(); } }, "Choose none"),
    ];
  }

  sort(key) {
    const column = COLUMNS.find((c) => c.key === key);
    state.up = state.sort === key ? !state.up : Boolean(column.up);
    state.sort = key;
    keep();
    this.draw();
  }

  drawTable({ entries, more: isMore, found, all }) {
    if (!all) return h("p", { class: "muted" }, "No runs here yet. A run appears as soon as it starts: atoll run fedavg");
    if (!found) return h("p", { class: "muted" }, `None of ${count(all, "run")} fits the filter.`);
    const arrow = (c) => (state.sort === c.key ? (state.up ? " ↑" : " ↓") : "");
    const rows = entries.flatMap((entry) => entry.members);
    const every = rows.every((run) => state.chosen.has(run.id));
    const head = h("tr", {},
      h("th", { scope: "col", class: "tick-box" }, h("input", {
        type: "checkbox", checked: every, "aria-label": "Choose all that are shown",
        onchange: (event) => { rows.forEach((run) => (event.target.checked ? state.chosen.add(run.id) : state.chosen.delete(run.id))); this.draw(); },
      })),
      COLUMNS.filter((c) => shows(c.key)).map((c) => h("th", { scope: "col", class: c.number ? "number" : null, "aria-sort": state.sort === c.key ? (state.up ? "ascending" : "descending") : null },
        h("button", { type: "button", class: "plain", onclick: () => this.sort(c.key) }, c.title, arrow(c)))));
    const more = isMore && h("button", { type: "button", onclick: () => { state.most += AT_ONCE; this.draw(); } }, `Show more of ${found.toLocaleString("en-GB")}`);
    const shown = found === all ? count(all, "run") : `${found.toLocaleString("en-GB")} of ${count(all, "run")}`;
    return [h("table", { class: "runs" }, h("thead", {}, head), h("tbody", {}, entries.flatMap((entry) => this.entry(entry)))), h("p", { class: "muted" }, shown, rows.some((run) => run.averaged) ? `. ${this.averaged}.` : ""), more].filter(Boolean);
  }

  entry({ key, members }) {
    if (members.length === 1) return [this.row(members[0])];
    const open = state.open.has(key);
    return [this.group(key, members, open), ...(open ? members.map((run) => this.row(run, "member")) : [])];
  }

  // One row for runs that differ only in their seeds: the mean score, and all that they sent and took.
  group(key, runs, open) {
    const [first] = runs;
    const seeds = runs.map((run) => run.seed).sort((a, b) => a - b);
    const all = runs.every((run) => state.chosen.has(run.id));
    const statuses = [...new Set(runs.map((run) => run.status))];
    const toggle = () => { if (!state.open.delete(key)) state.open.add(key); this.draw(); };
    const choose = () => { runs.forEach((run) => (all ? state.chosen.delete(run.id) : state.chosen.add(run.id))); this.draw(); };
    const scores = runs.map((run) => run.score);
    const total = {
      ...first, id: `seeds-${first.id}`, seeds, score: mean(scores), generic: null, up: sum(runs.map((run) => run.up)), down: sum(runs.map((run) => run.down)),
      seconds: sum(runs.map((run) => run.seconds)), left: null, began: runs.map((run) => run.began).sort().at(-1), problems: [],
    };
    return h("tr", { "data-id": total.id, class: `group ${all ? "chosen" : ""}` },
      h("td", { class: "tick-box" }, h("input", { type: "checkbox", "data-kind": "box", checked: all, "aria-label": `Choose ${seeds.length} seeds of ${first.method} in ${first.name}`, onchange: choose })),
      h("td", { class: "what" }, h("button", { type: "button", class: "plain fold", "aria-expanded": String(open), "aria-label": `Seeds of ${first.method}`, onclick: toggle }, open ? "▾ " : "▸ "),
        h("a", { href: `#/compare/${runs.map((run) => run.id).join(",")}`, "data-kind": "link" }, first.method), h("small", {}, `${first.name.slice(0, first.name.lastIndexOf("/") + 1)} · seeds ${seeds.join(", ")}`)),
      this.cells(total, statuses.map(chip), "mean "));
  }

  row(run, kind = "") {
    const seed = run.seed === null ? "" : ` · seed ${run.seed}`;
    return h("tr", { "data-id": run.id, class: `${kind} ${state.chosen.has(run.id) ? "chosen" : ""}` },
      h("td", { class: "tick-box" }, h("input", { type: "checkbox", "data-kind": "box", checked: state.chosen.has(run.id), "aria-label": `Choose ${run.name}`, onchange: () => this.toggle(run.id) })),
      h("td", { class: "what" }, h("a", { href: `#/run/${run.id}`, "data-kind": "link" }, run.method || run.name), h("small", {}, run.name, seed),
        run.problems.length ? h("small", { class: "problem" }, run.problems[0]) : null),
      this.cells(run, chip(run.status)));
  }

  // The cells that can be left out, in the order of the columns.
  cells(run, status, before = "") {
    const cell = (title, number, ...content) => h("td", { "data-title": title, class: number ? "number" : null }, content);
    const small = (...text) => h("small", {}, text);
    const made = {
      data: () => cell("Data", false, run.data ?? "–", small(run.partition ?? ""), h("small", { class: "narrow-only" }, count(run.clients, "client"))),
      clients: () => h("td", { class: "number wide-only" }, run.clients ?? "–"),
      done: () => cell("Rounds", true, run.done === null ? "–" : run.done === run.planned ? `${run.done}` : `${run.done} / ${run.planned}`, run.status === "running" ? progress(run) : null),
      status: () => cell("Status", false, status),
      score: () => cell("Score", true, titled(run.criterion, run.score), before ? small(before) : null, run.generic === null ? null : h("small", { class: "wide-only" }, genericScore(run))),
      bytes: () => cell("Bytes", true, bytes(run.up === null ? null : run.up + run.down), run.up === null ? null : h("small", { class: "wide-only" }, `↑\u00a0${bytes(run.up)} ↓\u00a0${bytes(run.down)}`)),
      seconds: () => cell("Time", true, duration(run.seconds), run.left ? small(`${duration(run.left)} left`) : null),
      began: () => cell("Began", false, h("span", { class: "when" }, date(run.began))),
    };
    return OPTIONAL.filter((c) => shows(c.key)).map((c) => made[c.key]());
  }

  toggle(id) {
    if (!state.chosen.delete(id)) state.chosen.add(id);
    this.draw();
  }

  key(event) {
    const links = [...this.body.element.querySelectorAll("a[data-kind=link]")];
    const here = document.activeElement?.closest?.("[data-id]")?.dataset.id;
    const at = links.findIndex((link) => link.closest("[data-id]").dataset.id === here);
    const typing = document.activeElement === this.filter;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      if (document.activeElement?.tagName === "SELECT") return false;
      const to = event.key === "ArrowDown" ? at + 1 : at - 1;
      if (to < 0) this.filter.focus();
      else links[Math.min(to, links.length - 1)]?.focus();
      return true;
    }
    if (typing && event.key === "Enter") { links[0]?.focus(); return true; }
    if (typing && event.key === "Escape") {
      if (!state.text) this.filter.blur();
      this.filter.value = state.text = "";
      this.draw();
      return true;
    }
    if (typing) return false;
    if (event.key === "/") { this.filter.focus(); this.filter.select(); return true; }
    if (event.key === " " && here && document.activeElement.dataset.kind === "link") { this.at(here, "box").click(); return true; }
    if (event.key === "c" && state.chosen.size) { location.hash = `#/compare/${[...state.chosen].join(",")}`; return true; }
    return false;
  }
}
