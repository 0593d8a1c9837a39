// Runs before anything is drawn, so that a dark page never flashes white. What is kept is "light", "dark" or nothing.
(() => {
  const KEY = "atoll-theme";
  const kept = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser may refuse to keep anything
    }
  };
  const show = (theme) => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  let theme = kept();
  show(theme);

  window.atollTheme = {
    get name() {
      return theme ?? "system";
    },
    next() {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const order = dark ? [null, "light", "dark"] : [null, "dark", "light"];
      theme = order[(order.indexOf(theme) + 1) % order.length];
      show(theme);
      try {
        if (theme) localStorage.setItem(KEY, theme);
        else localStorage.removeItem(KEY);
      } catch {
        // then it lasts as long as the page
      }
    },
  };
})();
