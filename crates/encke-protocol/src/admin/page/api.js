// Requests to the server that serves the page, and to no other. A token that was typed in is kept in memory only, so that it ends with the
// page.

let token = '';

/** Sets the token that requests carry from now on; an empty one for none. */
export function setToken(value) {
  token = value.trim();
}

/** Whether requests carry a token. */
export const hasToken = () => token !== '';

/** What the server said against a request. */
export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** Sends a request, and returns the response unless the server refuses it. */
export async function send(path, { method = 'GET', headers = {}, body, signal } = {}) {
  const credentials = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(path, {
    method,
    headers: { ...headers, ...credentials },
    body,
    signal,
    cache: 'no-store',
    credentials: 'same-origin',
  });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const { code = '', message = response.statusText } = problem.error ?? {};
  throw new Refused(response.status, code, message || `the server answers with status ${response.status}`);
}

/** The JSON of a response. */
export const get = async (path, signal) => (await send(path, { signal })).json();

/** Posts JSON to the API of operators. */
export const post = (path, body) =>
  send(path, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });

/** A path with the parameters that have a value. */
export function withQuery(path, parameters) {
  const given = Object.entries(parameters).filter(([, value]) => value !== '' && value !== undefined && value !== false);
  // The server takes `+` for itself.
  const query = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&');
  return query ? `${path}?${query}` : path;
}

/** The path of a stream or a pool: slashes in its name are segments. */
export const pathOf = (root, name) => root + name.split('/').map(encodeURIComponent).join('/');

/** Calls `each` for every line of a stream that is followed in lines of JSON, until `signal` ends it or the server does. */
export async function followLines(path, each, signal) {
  const response = await send(path, { headers: { Accept: 'application/x-ndjson' }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) {
        if (line && each(JSON.parse(line)) === false) return;
      }
    }
  } finally {
    // Otherwise the server would go on to send.
    await reader.cancel().catch(() => {});
  }
}
