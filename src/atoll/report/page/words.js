// Numbers and names for people.

const NONE = "–";
const GAP = "\u00a0"; // a number and its unit stay together
const known = (x) => typeof x === "number" && Number.isFinite(x);

// 80 %, 80.5 % or 80.504 %: for the ticks of an axis, which may be near to each other.
export const tick = (x) => (known(x) ? `${Number((100 * x).toFixed(3))}${GAP}%` : NONE);
export const percent = (x, digits = 2) => (known(x) ? `${(100 * x).toFixed(digits)}${GAP}%` : NONE);

export function bytes(n) {
  if (!known(n)) return NONE;
  for (const [unit, factor] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (n >= 0.9995 * factor) return `${digits(n / factor)}${GAP}${unit}`;
  }
  return `${Math.round(n)}${GAP}B`;
}

const digits = (x) => (x >= 99.95 ? x.toFixed(0) : x >= 9.995 ? x.toFixed(1) : x.toFixed(2));

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 9.95) return `${seconds.toFixed(1)}${GAP}s`;
  if (seconds < 59.5) return `${Math.round(seconds)}${GAP}s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes}${GAP}min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours}${GAP}h${GAP}${minutes % 60}${GAP}min` : `${Math.round(hours / 24)}${GAP}d`;
}

// The local time, to the minute; sorts of texts in UTC are sorts by time.
export const date = (text) => (text ? new Date(text).toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" }) : NONE);

export const count = (n, noun) => `${known(n) ? n.toLocaleString("en-GB") : NONE} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
export const number = (x, places = 3) => (known(x) ? String(Number(x.toPrecision(places))) : NONE);
export const measure = (name) => name.replaceAll("_", " ");

// Shares are shown in percent; a loss is no share, and a run says what its own scores are.
export const asPercent = (name, score) => score?.details[name] ?? ((score?.percent ?? true) && !name.includes("loss"));
export const inUnit = (score, digits = 2) => (x) => (score?.percent ?? true ? percent(x, digits) : number(x, 4));
export const titled = (score, x) => (score && score.name !== "accuracy" && known(x) ? `${score.title}${GAP}` : "") + inUnit(score)(x);

export const STATUS = {
  running: ["▶", "running"],
  finished: ["✓", "finished"],
  interrupted: ["❚❚", "interrupted"],
  diverged: ["✕", "diverged"],
  exhausted: ["∅", "exhausted"],
  stopped: ["■", "stopped"],
  damaged: ["!", "damaged"],
};
