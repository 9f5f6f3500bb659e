// Reading the stream with the official client, for as long as the page is open.
//
// The client catches up, then stays on server-sent events and reconnects by itself when the server ends a response in
// good order. When a connection breaks, it gives up the session; then a new one begins at the last offset that was
// shown. So nothing is shown twice and nothing is missed, whichever way the server went.

import { stream } from '@durable-streams/client';

const RETRY_MS = 500;
const BACKOFF = { initialDelay: 100, maxDelay: 2_000, multiplier: 1.5 };

/**
 * Follows the JSON stream at `url` from its beginning. `onBatch(items, offset)` gets the events in order; `onState` gets
 * `connecting`, `catching-up`, `live`, `away` (the server doesn't answer), `missing` (no such stream yet) or `ended`.
 * Returns when the stream has been closed, or when `signal` is aborted.
 */
export async function follow({ url, onBatch, onState, signal }) {
  let offset = '-1';
  onState('connecting');
  while (!signal?.aborted) {
    const session = new AbortController();
    const stop = () => session.abort();
    signal?.addEventListener('abort', stop);
    try {
      const response = await stream({
        url,
        offset,
        live: 'sse',
        json: true,
        signal: session.signal,
        fetch: watched(onState),
        backoffOptions: BACKOFF,
        warnOnHttp: false,
      });
      response.subscribeJson((batch) => {
        offset = batch.offset;
        onBatch(batch.items, batch.offset);
      });
      await response.closed;
      if (response.streamClosed) {
        onState('ended');
        return;
      }
    } catch (error) {
      if (signal?.aborted) return;
      onState(error.status === 404 ? 'missing' : 'away');
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    } finally {
      signal?.removeEventListener('abort', stop);
      session.abort();
    }
  }
}

/** `fetch`, which also reports the result of each request. */
function watched(onState) {
  return async (input, init) => {
    const live = new URL(input).searchParams.has('live');
    try {
      const response = await fetch(input, init);
      if (response.ok) onState(live ? 'live' : 'catching-up');
      else if (response.status >= 500) onState('away');
      return response;
    } catch (error) {
      if (!init.signal?.aborted) onState('away');
      throw error;
    }
  };
}
