// Where the page's data come from: requests to the server, which viewing/browser/server.py describes. The page of a
// report has embedded.js instead.
import { link } from "./route.js";
import { bytes } from "./text.js";

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
  const text = await response.text();
  let answer = null;
  try {
    answer = JSON.parse(text);
  } catch {
    // not JSON: the status says enough
  }
  if (!response.ok || answer === null) throw new Error(answer?.error ? String(answer.error) : `status ${response.status}`);
  return answer;
}

const WIDEST = 1600; // larger images are scaled down while they are decoded

/** The image of a camera: {bitmap, step, pixels, size}, or {error, pixels: 0, size} if the bytes are no image. */
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
    return { bitmap, step: query.step, pixels: bitmap.width * bitmap.height, size: blob.size };
  } catch {
    return { error: `This image is damaged: its ${bytes(blob.size)} cannot be decoded.`, pixels: 0, size: blob.size };
  }
}

/** Properties of a link to an episode. */
export const episodeLink = (dataset, episode) => link({ dataset, episode, at: "", t: "", tab: "", with: "" });
