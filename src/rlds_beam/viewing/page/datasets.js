// The datasets that the server was started with; asked again while one is being scanned.
import { get } from "./source.js";
import { Store } from "./lib.js";

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
