// The page's state that belongs in its address: what is open, how the list is sorted and filtered, which step is shown.
import { Store, useStore } from "./lib.js";

const NAMES = ["dataset", "sort", "desc", "filter", "text", "split", "rule", "view", "episode", "at", "t", "tab", "with"];

class Route extends Store {
  constructor() {
    super();
    this.read();
    window.addEventListener("popstate", () => {
      this.read();
      this.emit();
    });
    history.replaceState(null, "", this.address({})); // removes the token
  }

  read() {
    const query = new URLSearchParams(location.search);
    this.state = Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
  }

  address(changes) {
    const query = new URLSearchParams();
    for (const name of NAMES) {
      const value = changes[name] ?? (name in changes ? "" : this.state[name]);
      if (value !== "") query.set(name, value);
    }
    return query.size ? `/?${query}` : "/";
  }

  /** Changes the state; a new entry of the history unless `replace` is set. */
  go(changes, replace = false) {
    const address = this.address(changes);
    if (address === location.pathname + location.search) return;
    history[replace ? "replaceState" : "pushState"](null, "", address);
    this.read();
    this.emit();
  }

  /** Remembers the step in the address, without rendering anything. */
  note(t) {
    this.state.t = String(t);
    history.replaceState(null, "", this.address({}));
  }
}

export const route = new Route();
export const useRoute = () => useStore(route).state;

/** Properties of a link that changes the state in this tab, and opens in another one as any link does. */
export const link = (changes) => ({
  href: route.address(changes),
  onClick: (event) => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    route.go(changes);
  },
});
