// Where the page's data come from: requests to the server, which viewing/browser/server.py describes. The page of a
// report has embedded.js instead.
import { Store, bytes, useStore } from "./lib.js";

/** The path with its parameters. Empty ones are left out; a list gives several parameters of one name. */
export function address(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
  return query.size ? `${path}?${query}` : path;
}

/** The JSON answer; an Error with the server's words if there is none. */
export async function get(path, params, signal) {
  let response;
  try {
    response = await fetch(address(path, params), { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is `rlds-beam browse` still running?");
  }
  const answer = await response.json().catch(() => null);
  if (!response.ok || answer === null) throw new Error(answer?.error ? String(answer.error) : `status ${response.status}`);
  return answer;
}

const WIDEST = 1600; // larger images are scaled down while they are decoded

/** The image of a camera: {bitmap, step, pixels}, or {error, pixels: 0} if the bytes are no image. */
export async function loadImage(query, signal) {
  const response = await fetch(address("/image", query), { signal });
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new Error(answer?.error ?? `status ${response.status}`);
  }
  const blob = await response.blob();
  try {
    let bitmap = await createImageBitmap(blob);
    if (bitmap.width > WIDEST) {
      const whole = bitmap;
      bitmap = await createImageBitmap(whole, { resizeWidth: WIDEST, resizeQuality: "medium" });
      whole.close();
    }
    return { bitmap, step: query.step, pixels: bitmap.width * bitmap.height };
  } catch {
    return { error: `This image is damaged: its ${bytes(blob.size)} cannot be decoded.`, pixels: 0 };
  }
}

/** Properties of a link to an episode. */
export const episodeLink = (dataset, episode) => link({ dataset, episode, at: "", t: "", tab: "", with: "" });

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

class Datasets extends Store {
  all = null;
  error = null;

  constructor() {
    super();
    this.ask();
  }

  async ask() {
    try {
      const answer = await get("/api/datasets");
      if (JSON.stringify(answer) !== JSON.stringify(this.all)) this.all = answer;
      this.error = null;
    } catch (error) {
      this.error = error.message;
    }
    this.emit();
    const busy = this.all?.some((one) => one.scan.state === "running");
    if (busy || this.error) setTimeout(() => this.ask(), 1000);
  }

  /** The dataset with an id; the first one if there is none. */
  find(id) {
    return this.all?.find((one) => one.id === id) ?? this.all?.[0];
  }
}

export const datasets = new Datasets();
