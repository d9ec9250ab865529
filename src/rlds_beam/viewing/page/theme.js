// Applies the chosen theme before the first paint. Loaded in the head, so it is no module.
"use strict";
window.theme = {
  get() {
    try { return localStorage.getItem("rlds-beam/theme") || "system"; } catch { return "system"; } // private windows
  },
  set(name) {
    try { localStorage.setItem("rlds-beam/theme", name); } catch { /* for this page only */ }
    document.documentElement.dataset.theme = name;
    window.dispatchEvent(new Event("theme"));
  },
};
document.documentElement.dataset.theme = window.theme.get();
