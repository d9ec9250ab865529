// Applies the chosen theme before the first paint. Loaded in the head, so it is no module.
"use strict";
window.theme = {
  get: () => localStorage.getItem("rlds-beam/theme") || "system",
  set(name) {
    localStorage.setItem("rlds-beam/theme", name);
    document.documentElement.dataset.theme = name;
    window.dispatchEvent(new Event("theme"));
  },
};
document.documentElement.dataset.theme = window.theme.get();
