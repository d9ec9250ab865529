// Applies the chosen theme before the first paint. Loaded in the head, so it is no module.
"use strict";
window.theme = {
  isDark: () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark",
  set(name) {
    try { localStorage.setItem("rlds-beam/theme", name); } catch { /* for this page only */ }
    document.documentElement.dataset.theme = name;
    window.dispatchEvent(new Event("theme"));
  },
};
try { document.documentElement.dataset.theme = localStorage.getItem("rlds-beam/theme") ?? ""; } catch { /* private windows */ }
