// The requests that the clients of a test make with the fetch of Node. Importing this module wraps it.

const fetchOfNode = globalThis.fetch;
/** Requests without a response, each with its method and its URL. */
const pending = new Set();
const ended = new Set();

globalThis.fetch = async (resource, options) => {
  const request = { method: options?.method ?? resource.method ?? 'GET', url: String(resource.url ?? resource) };
  if (ended.has(new URL(request.url).origin)) return new Response(null, { status: 410 });
  pending.add(request);
  try {
    return await fetchOfNode(resource, options);
  } finally {
    pending.delete(request);
  }
};

/** Whether requests of this method for URLs that begin with `url` have no response yet. */
export const isPending = (method, url) => [...pending].some((request) => request.method === method && request.url.startsWith(url));

/** Refuses requests to `origin` from now on. Clients that repeat their requests for ever end by that. */
export function endRequestsTo(origin) {
  ended.add(origin);
}
