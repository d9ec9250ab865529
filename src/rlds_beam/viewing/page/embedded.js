// The data of a report are in its page: answers as those of the server (source.js), and where its episodes are.
import { Store, indexOf, number, shortKey } from "./lib.js";

export const root = JSON.parse(document.getElementById("report-data").textContent);
const part = root.dataset;
const rows = new Map(); // the key of an episode -> its row

/** Gives each episode its place: the first section that names it shows it, others link there. */
function placeEpisodes() {
  const episodes = new Map(part.episodes.map((one) => [one.key, one]));
  const take = (keys) => [...new Set(keys)].filter((key) => episodes.has(key) && !rows.has(key)).map((key) => {
    const episode = episodes.get(key), index = rows.size; // its place in this report
    const row = { dataset: "0", id: `e${index}`, index, named: part.nameOf(key), key, steps: episode.steps, instruction: episode.instruction, episode };
    rows.set(key, row);
    return row;
  });
  part.nameOf = (key) => (Object.hasOwn(part.numbers, key) ? `episode ${number(part.numbers[key])}` : shortKey(key)); // one that a conversion rejected
  part.anchor = (key) => rows.get(key)?.id;
  part.linkTo = (key) => part.anchor(key) && { href: `#${part.anchor(key)}` };
  part.shown = {
    rules: part.rules.map((rule) => take(rule.samples.map((one) => one.key))),
    worst: take(part.signals.flatMap((signal) => signal.worst.slice(0, signal.beyond).map((one) => one.key))),
    samples: take(part.samples),
  };
}

placeEpisodes();

const dataset = { cameras: [], ...part.facts, id: "0" };
export const datasets = Object.assign(new Store(), { all: [dataset], find: () => dataset });

function find({ key }) {
  const row = rows.get(key);
  if (!row) throw new Error(`${key} is not in this report`);
  return row;
}

/** The picture nearest to a step. */
function nearest({ camera, step, ...query }) {
  const some = find(query).episode.cameras.find((one) => one.path === camera)?.pictures ?? [];
  return some.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a), some[0]);
}

const answers = {
  "/api/episode": (query) => ({ ...find(query).episode, index: find(query).index, named: find(query).named }),
  "/api/episodes": ({ text, offset = 0, limit = 100 }) => {
    const some = [...rows.values()].filter((row) => !text || row.key === text);
    return { total: some.length, offset, rows: some.slice(offset, offset + limit) };
  },
  "/api/step": ({ step, ...query }) => {
    const { episode } = find(query);
    const numbers = episode.curves.map((one) => [one.path, one.values.map((values) => values[indexOf(one, step)])]);
    const texts = episode.texts.map((one) => [one.path, one.runs.findLast((run) => run[0] <= step)?.[1]]);
    return { step, values: [...numbers.map(([path, all]) => [path, all.length > 1 ? all : all[0]]), ...texts].map(([path, value]) => ({ path, value })) };
  },
};

export const get = async (path, params) => answers[path](params);
export const address = (_, query) => {
  const picture = nearest(query);
  return picture ? sourceOf(picture) : "";
};
export const sourceOf = ({ jpeg }) => `data:image/jpeg;base64,${jpeg}`;
export const episodeLink = (_, key) => ({ href: rows.has(key) ? `#${rows.get(key).id}` : undefined });

const decoded = new WeakMap();

/** The picture nearest to a step: {bitmap, step, pixels}. */
export async function loadImage(query) {
  const picture = nearest(query);
  if (!picture) throw new Error("The report has no frames of this camera.");
  if (!decoded.has(picture)) {
    const bitmap = new Image();
    bitmap.src = sourceOf(picture);
    await bitmap.decode();
    decoded.set(picture, { bitmap, step: picture.step, pixels: 0 });
  }
  return decoded.get(picture);
}
