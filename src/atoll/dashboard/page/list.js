// The list of runs: filter, sort, choose.

import { h, Part, select } from "./dom.js";
import { ask } from "./server.js";
import { bytes, count, duration, inUnit, STATUS, titled } from "./words.js";

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
];

// Kept while the page is open, whatever is looked at in between.
export const state = { text: "", method: "", status: "", sort: "status", up: true, most: AT_ONCE, chosen: new Set(), opened: null };

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
    this.tools.show({ methods, statuses, method: state.method, status: state.status, sort: state.sort, up: state.up });
    this.choice.show([...state.chosen]);
    const found = visible(this.runs);
    const focus = document.activeElement?.closest?.("[data-id]")?.dataset.id;
    const kind = document.activeElement?.dataset?.kind;
    this.body.show({ rows: found.slice(0, state.most), found: found.length, all: this.runs.length, chosen: [...state.chosen], sort: state.sort, up: state.up });
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
    this.draw();
  }

  drawTable({ rows, found, all }) {
    if (!all) return h("p", { class: "muted" }, "No runs here yet. A run appears as soon as it starts: atoll run fedavg");
    if (!found) return h("p", { class: "muted" }, `None of ${count(all, "run")} fits the filter.`);
    const arrow = (c) => (state.sort === c.key ? (state.up ? " ↑" : " ↓") : "");
    const every = rows.every((run) => state.chosen.has(run.id));
    const head = h("tr", {},
      h("th", { scope: "col", class: "tick-box" }, h("input", {
        type: "checkbox", checked: every, "aria-label": "Choose all that are shown",
        onchange: (event) => { rows.forEach((run) => (event.target.checked ? state.chosen.add(run.id) : state.chosen.delete(run.id))); this.draw(); },
      })),
      COLUMNS.map((c) => h("th", { scope: "col", class: c.number ? "number" : null, "aria-sort": state.sort === c.key ? (state.up ? "ascending" : "descending") : null },
        h("button", { type: "button", class: "plain", onclick: () => this.sort(c.key) }, c.title, arrow(c)))));
    const more = found > rows.length && h("button", { type: "button", onclick: () => { state.most += AT_ONCE; this.draw(); } }, `Show more of ${found.toLocaleString("en-GB")}`);
    const shown = found === all ? count(all, "run") : `${found.toLocaleString("en-GB")} of ${count(all, "run")}`;
    return [h("table", { class: "runs" }, h("thead", {}, head), h("tbody", {}, rows.map((run) => this.row(run)))), h("p", { class: "muted" }, shown, rows.some((run) => run.averaged) ? `. ${this.averaged}.` : ""), more].filter(Boolean);
  }

  row(run) {
    const cell = (title, number, ...content) => h("td", { "data-title": title, class: number ? "number" : null }, content);
    const small = (...text) => h("small", {}, text);
    const seed = run.seed === null ? "" : ` · seed ${run.seed}`;
    return h("tr", { "data-id": run.id, class: state.chosen.has(run.id) ? "chosen" : null },
      h("td", { class: "tick-box" }, h("input", { type: "checkbox", "data-kind": "box", checked: state.chosen.has(run.id), "aria-label": `Choose ${run.name}`, onchange: () => this.toggle(run.id) })),
      h("td", { class: "what" }, h("a", { href: `#/run/${run.id}`, "data-kind": "link" }, run.method || run.name), small(run.name, seed),
        run.problems.length ? h("small", { class: "problem" }, run.problems[0]) : null),
      cell("Data", false, run.data ?? "–", small(run.partition ?? ""), h("small", { class: "narrow-only" }, count(run.clients, "client"))),
      h("td", { class: "number wide-only" }, run.clients ?? "–"),
      cell("Rounds", true, run.done === null ? "–" : run.done === run.planned ? `${run.done}` : `${run.done} / ${run.planned}`, run.status === "running" ? progress(run) : null),
      cell("Status", false, chip(run.status)),
      cell("Score", true, titled(run.criterion, run.score), run.generic === null ? null : h("small", { class: "wide-only" }, genericScore(run))),
      cell("Bytes", true, bytes(run.up === null ? null : run.up + run.down), run.up === null ? null : h("small", { class: "wide-only" }, `↑\u00a0${bytes(run.up)} ↓\u00a0${bytes(run.down)}`)),
      cell("Time", true, duration(run.seconds), run.left ? small(`${duration(run.left)} left`) : null));
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
    if (event.key === " " && here && document.activeElement.dataset.kind === "link") { this.toggle(here); return true; }
    if (event.key === "c" && state.chosen.size) { location.hash = `#/compare/${[...state.chosen].join(",")}`; return true; }
    return false;
  }
}
