// Follows streams to their ends, with an EventSource each, over restarts of the server and ends of tokens.
//
// An EventSource connects again by itself after a cut, but gives up if the status is not 200. It is 401 when the token has
// ended. It is 204 when all data has come and the stream was closed while the connection was cut: then the reason is still
// missing. In both cases another EventSource begins at the last position.
//
// A browser opens at most six HTTP/1.1 connections to a server, for all tabs together. So a tab has connections only while
// it can be seen.

const RETRY_MS = 500;
/** The connections of all streams that have not ended. */
const connections = new Set();

document.addEventListener('visibilitychange', () => {
  for (const connection of connections) {
    if (document.hidden) connection.close();
    else connection.open();
  }
});

/**
 * Follows the JSON stream at `url` from `position`, a part of a query. Calls `onMessage` for each message, once and in
 * order, and `onEnd` with the reason when the stream has ended. `onState` gets `live` or `away`. `renew` gets a new token.
 */
export function follow(url, { position = 'offset=-1', onMessage, onEnd = () => {}, onState, renew }) {
  let source;
  let retry;

  function open() {
    close();
    const opened = new EventSource(`${url}?${position}&live=sse`, { withCredentials: true });
    source = opened;
    source.onopen = () => onState('live');
    source.addEventListener('data', ({ data, lastEventId }) => {
      JSON.parse(data).forEach(onMessage);
      position = `offset=${lastEventId}`;
    });
    source.addEventListener('control', ({ data }) => {
      const { streamNextOffset, streamClosed, endReason } = JSON.parse(data);
      position = `offset=${streamNextOffset}`;
      if (!streamClosed) return;
      close();
      connections.delete(connection);
      onEnd(endReason);
    });
    source.onerror = async () => {
      if (opened.readyState === EventSource.CONNECTING) return onState('away');
      await renew().catch(() => onState('away'));
      // The tab was hidden or shown meanwhile.
      if (source === opened && !document.hidden) retry = setTimeout(open, RETRY_MS);
    };
  }

  function close() {
    clearTimeout(retry);
    source?.close();
  }

  const connection = { open, close };
  connections.add(connection);
  if (!document.hidden) open();
}
