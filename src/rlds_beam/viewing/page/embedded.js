// The data of a report are in its page: answers as those of the server (source.js), and where its episodes are.
import { indexOf } from "./lib.js";
import { shortKey } from "./text.js";

export const root = JSON.parse(document.getElementById("report-data").textContent);
const listed = [];
const rows = new Map(); // the dataset and key of an episode -> its row
const name = (dataset, key) => `${dataset} ${key}`;
const none = { cameras: [], columns: [], scan: { state: "none" } };

/** What an episode is called: its number; its key if that is unknown, as of a record that a conversion rejected. */
const nameOf = (key, number) => (number === null ? shortKey(key) : `episode ${number.toLocaleString("en-US")}`);

function add(dataset, id, episode, number = null) {
  const index = [...rows.values()].filter((row) => row.dataset === dataset).length; // its place in this report
  const named = nameOf(episode.key, number);
  const row = { dataset, id, index, named, key: episode.key, steps: episode.steps, instruction: episode.instruction, episode };
  rows.set(name(dataset, episode.key), row);
  return row;
}

/** Gives each episode of a dataset its place: the first section that names it shows it, others link there. */
function placeEpisodes(part, number) {
  const { facts, rules, signals } = part, several = root.datasets.length > 1;
  const episodes = new Map(part.episodes.map((one) => [one.key, one]));
  Object.assign(part, { id: String(number), prefix: several ? `${"ab"[number]}-` : "", name: several ? facts.name : "" });
  const numberOf = (key) => (Object.hasOwn(part.numbers, key) ? part.numbers[key] : null);
  const take = (keys) => keys.filter((key) => episodes.has(key) && !rows.has(name(part.id, key)))
    .map((key) => add(part.id, `${part.prefix}e${rows.size}`, episodes.get(key), numberOf(key)));
  const takeOnce = (keys) => take([...new Set(keys)]);
  part.shown = {
    rules: rules.map((rule) => takeOnce(rule.samples.map((one) => one.key))),
    worst: takeOnce(signals.flatMap((signal) => signal.worst.slice(0, signal.beyond).map((one) => one.key))),
    samples: takeOnce(part.samples),
  };
  part.nameOf = (key) => nameOf(key, numberOf(key));
  part.anchor = (key) => rows.get(name(part.id, key))?.id;
  part.linkTo = (key) => part.anchor(key) && { href: `#${part.anchor(key)}` };
  listed.push({ ...none, id: part.id, name: facts.name, path: facts.path, format: facts.format, fps: facts.fps });
}

root.datasets.forEach(placeEpisodes);
function find({ dataset, key }) {
  const row = rows.get(name(dataset, key));
  if (!row) throw new Error(`${key} is not in this report`);
  return row;
}

/** The picture nearest to a step. */
function nearest({ camera, step, ...query }) {
  const some = find(query).episode.cameras.find((one) => one.path === camera)?.pictures ?? [];
  return some.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a), some[0]);
}

const answers = {
  "/api/datasets": () => listed,
  "/api/episode": (query) => ({ ...find(query).episode, index: find(query).index, named: find(query).named }),
  "/api/episodes": ({ dataset, text, offset = 0, limit = 100 }) => {
    const some = [...rows.values()].filter((row) => row.dataset === dataset && (!text || row.key === text));
    return { total: some.length, offset, rows: some.slice(offset, offset + limit), scanned: true };
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
export const episodeLink = (dataset, key) => ({ href: rows.has(name(dataset, key)) ? `#${rows.get(name(dataset, key)).id}` : undefined });

const decoded = new WeakMap();

/** The picture nearest to a step: {bitmap, step, pixels, size}. */
export async function loadImage(query) {
  const picture = nearest(query);
  if (!picture) throw new Error("The report has no frames of this camera.");
  if (!decoded.has(picture)) {
    const bitmap = new Image();
    bitmap.src = sourceOf(picture);
    await bitmap.decode();
    decoded.set(picture, { bitmap, step: picture.step, pixels: 0, size: picture.jpeg.length });
  }
  return decoded.get(picture);
}
