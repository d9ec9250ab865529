// The episodes of a report are in its page: answers as those of the server (source.js), from JSON and images there.
import { indexOf } from "./lib.js";

const root = JSON.parse(document.getElementById("report-data").textContent);
const name = (dataset, key) => `${dataset} ${key}`;
root.rows = root.rows.filter((row) => document.getElementById(row.id));
export const rows = new Map(root.rows.map((row) => [name(row.dataset, row.key), row]));
const opened = new Map(); // the id of an article -> its episodes, and the pictures of their cameras

/** The episodes of an article, and their pictures: [{step, src}] for each camera. The page has them as frames. */
function open(id) {
  if (!opened.has(id)) {
    const article = document.getElementById(id);
    const pictures = [...article.querySelectorAll(".view")].map((view) => [...view.querySelectorAll(".frames")].map(
      (list) => [...list.querySelectorAll("img")].map((image) => ({ step: Number(image.dataset.step), src: image.src }))));
    opened.set(id, { episodes: JSON.parse(article.querySelector('script[type="application/json"]').textContent), pictures });
  }
  return opened.get(id);
}

function find({ dataset, key }) {
  const row = rows.get(name(dataset, key));
  if (!row) throw new Error(`${key} is not in this report`);
  const { episodes, pictures } = open(row.id);
  return { row, episode: episodes[row.place], pictures: pictures[row.place] ?? [] };
}

/** The picture nearest to a step. */
function nearest({ camera, step, ...query }) {
  const { episode, pictures } = find(query);
  const some = pictures[episode.cameras.findIndex((one) => one.path === camera)] ?? [];
  return some.reduce((a, b) => (Math.abs(b.step - step) < Math.abs(a.step - step) ? b : a), some[0]);
}

const answers = {
  "/api/datasets": () => root.datasets,
  "/api/episode": (query) => ({ ...find(query).episode, index: find(query).row.index }),
  "/api/episodes": ({ dataset, text, offset = 0, limit = 100 }) => {
    const some = root.rows.filter((row) => row.dataset === dataset && (!text || row.key === text));
    return { total: some.length, offset, rows: some.slice(offset, offset + limit), scanned: true };
  },
  "/api/counterpart": ({ dataset, key }) => {
    const other = root.datasets.find((one) => one.id === dataset)?.compare_to;
    return { dataset: other, key: rows.has(name(other, key)) ? key : null, how: "The same episode." };
  },
  "/api/step": ({ step, ...query }) => {
    const { episode } = find(query);
    const numbers = episode.curves.map((one) => [one.path, one.values.map((values) => values[indexOf(one, step)])]);
    const texts = episode.texts.map((one) => [one.path, one.runs.findLast((run) => run[0] <= step)?.[1]]);
    return { step, values: [...numbers.map(([path, all]) => [path, all.length > 1 ? all : all[0]]), ...texts].map(([path, value]) => ({ path, value })) };
  },
};

export const get = async (path, params) => answers[path](params);
export const address = (_, query) => nearest(query)?.src ?? "";
export const episodeLink = (dataset, key) => ({ href: rows.has(name(dataset, key)) ? `#${rows.get(name(dataset, key)).id}` : undefined });

const decoded = new WeakMap();

/** The picture nearest to a step: {bitmap, step, pixels, size}. */
export async function loadImage(query) {
  const picture = nearest(query);
  if (!picture) throw new Error("The report has no frames of this camera.");
  if (!decoded.has(picture)) {
    const bitmap = new Image();
    bitmap.src = picture.src;
    await bitmap.decode();
    decoded.set(picture, { bitmap, step: picture.step, pixels: 0, size: picture.src.length });
  }
  return decoded.get(picture);
}
