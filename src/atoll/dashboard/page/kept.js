// Choices that last over reloads, if the browser keeps anything.

const KEY = "atoll-list";

export function kept(defaults) {
  try {
    const found = JSON.parse(localStorage.getItem(KEY)) ?? {};
    const fits = Object.entries(found).filter(([name, value]) => name in defaults && typeof value === typeof defaults[name]);
    return { ...defaults, ...Object.fromEntries(fits) };
  } catch {
    return defaults;
  }
}

export function remember(choices) {
  try {
    localStorage.setItem(KEY, JSON.stringify(choices));
  } catch {
    // then they last as long as the page
  }
}
