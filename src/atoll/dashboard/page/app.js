// Which view is shown, how often it looks again, keys and theme.

import { Comparison } from "./compare.js";
import { h } from "./dom.js";
import { List } from "./list.js";
import { Run } from "./run.js";

const EVERY = 1500; // milliseconds

const main = document.getElementById("main");
const live = document.getElementById("live");
const help = document.getElementById("help");
const theme = document.getElementById("theme");
let view = null;
let turn = 0; // counts views, so that a late answer to an earlier one is dropped

function made(route) {
  const [, kind, rest] = route.match(/^#\/(run|compare)\/([0-9a-f,]+)$/) ?? [];
  if (kind === "run") return new Run(main, rest);
  if (kind === "compare") return new Comparison(main, rest);
  return new List(main);
}

async function look() {
  const mine = turn;
  try {
    const answer = await view.refresh();
    if (mine !== turn) return;
    if (answer?.root) document.getElementById("root").textContent = answer.root;
    document.title = `${view.title()} · Atoll`;
    tell("live", "live");
  } catch (problem) {
    if (mine !== turn) return;
    if (!problem.answered && !(problem instanceof TypeError)) throw problem;
    tell("lost", problem.answered ? problem.message : "no answer: is atoll ui still running?");
    if (problem.answered) main.replaceChildren(h("p", {}, h("a", { href: "#/" }, "← All runs")), h("p", { class: "problem", role: "alert" }, problem.message));
  }
}

function tell(kind, words) {
  if (live.textContent !== words) live.textContent = words;
  live.className = kind;
}

async function keepLooking() {
  if (!document.hidden) await look();
  setTimeout(keepLooking, EVERY);
}

function go() {
  if (location.hash && !location.hash.startsWith("#/")) return;
  turn += 1;
  view = made(location.hash);
  window.scrollTo(0, 0);
  main.focus({ preventScroll: true });
  return look();
}

function showTheme() {
  const name = window.atollTheme.name;
  theme.textContent = { system: "◐", dark: "☾", light: "☀" }[name];
  theme.title = `Colours: ${name === "system" ? "as the system has them" : name} (t)`;
  theme.setAttribute("aria-label", theme.title);
}

function nextTheme() {
  window.atollTheme.next();
  showTheme();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const writing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "checkbox";
  if (view.key(event)) event.preventDefault();
  else if (writing) return;
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") help.showModal();
});
theme.addEventListener("click", nextTheme);
document.getElementById("help-button").addEventListener("click", () => help.showModal());
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
window.addEventListener("hashchange", go);
showTheme();
go().then(() => setTimeout(keepLooking, EVERY));
