// Follows the three streams of a pool over one connection.
//
// A browser opens at most six connections to a server, for all tabs together. So a tab has a connection only while it
// can be seen: when it is shown again, it continues behind the last event that it got.

const RETRY_MS = 500;

/**
 * Calls `onMessage[stream]` for each message of the streams `events`, `results` and `dead` of a pool, from their
 * beginning, each once. `onState` gets `live`, `away` (the server does not answer) or `missing` (it has no such pool).
 */
export function follow({ encke, name, onMessage, onState }) {
  const prefix = `pool/${name}/`;
  const query = Object.keys(onMessage).map((stream) => `stream=${encodeURIComponent(prefix + stream)}@-1`).join('&');
  let after = '';
  let source;
  let retry;

  function open() {
    const opened = new EventSource(`${encke}/v1/events?${query}${after}`);
    source = opened;
    source.onopen = () => onState('live');
    source.onmessage = ({ data, lastEventId }) => {
      const { stream, messages } = JSON.parse(data);
      messages.forEach(onMessage[stream.slice(prefix.length)]);
      after = `&after=${encodeURIComponent(lastEventId)}`;
    };
    source.onerror = async () => {
      close();
      // An EventSource does not say why it failed.
      const pool = await fetch(`${encke}/v1/pool/${name}`).catch(() => undefined);
      // The tab was hidden or shown meanwhile.
      if (source !== opened || document.hidden) return;
      onState(pool?.status === 404 ? 'missing' : 'away');
      retry = setTimeout(open, RETRY_MS);
    };
  }

  function close() {
    clearTimeout(retry);
    source?.close();
  }

  document.addEventListener('visibilitychange', () => {
    close();
    if (!document.hidden) open();
  });
  if (!document.hidden) open();
}
