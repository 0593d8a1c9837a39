// Elements from data. Text is always text: nothing that a run says can become markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function table(heads, rows, { caption, numeric = [] } = {}) {
  const kind = (i) => (numeric.includes(i) ? { class: "number" } : {});
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", ...kind(i) }, head)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h("td", kind(i), cell ?? "–")))))));
}

// A table that is wider than its place says so, and fades at the edge beyond which it goes on.
export function markCut(place) {
  const hint = h("p", { class: "goes-on", hidden: true }, "Scroll the table sideways for more columns \u2192");
  place.before(hint);
  const measure = () => {
    hint.hidden = place.scrollWidth <= place.clientWidth + 1;
    place.classList.toggle("cut", place.scrollLeft + place.clientWidth < place.scrollWidth - 1);
  };
  place.addEventListener("scroll", measure);
  new ResizeObserver(measure).observe(place);
}

export function select(label, options, chosen, onchange, attributes = {}) {
  return h("label", { class: "field", ...attributes }, h("span", {}, label),
    h("select", { "aria-label": label, onchange: (event) => onchange(event.target.value) },
      options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}

// A part of a page that is drawn anew only when what it shows has changed, so that nobody loses their place.
export class Part {
  constructor(element, draw) {
    this.element = element;
    this.draw = draw;
    this.shown = undefined;
  }

  focusable() {
    return [...this.element.querySelectorAll("a, button, select, input, summary, [tabindex]")];
  }

  show(data) {
    const now = JSON.stringify(data ?? null);
    if (now === this.shown) return;
    this.shown = now;
    const open = [...this.element.querySelectorAll("details")].map((d) => d.open);
    const focus = this.focusable().indexOf(document.activeElement);
    const made = this.draw(data);
    this.element.replaceChildren(...(made ? [made].flat() : []));
    this.element.hidden = !made;
    this.element.querySelectorAll("details").forEach((d, i) => { d.open = open[i] ?? d.open; });
    if (focus >= 0) this.focusable()[focus]?.focus({ preventScroll: true });
  }
}
