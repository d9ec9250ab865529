// Requests to the server; viewing/browser/server.py describes the answers.

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
