/** What stands between two empty lines of an event stream. */
export interface StreamEvent {
  id?: string;
  name?: string;
  data?: string;
  retryMs?: number;
}

/** A body did not come to its end. */
export class Cut extends Error {}

/**
 * The events of a body of `text/event-stream`, also those without data, which state a position or a time to retry. Comments are
 * left out. A silent body is given up after `silenceMsMax`: then `abort` is called, which makes the read fail.
 */
export async function* eventsOf(body: ReadableStream<Uint8Array>, silenceMsMax: number, abort: (reason: Error) => void): AsyncGenerator<StreamEvent, void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let event: StreamEvent = {};
  let rest = '';
  for (;;) {
    const timer = setTimeout(() => abort(new Error(`nothing came for ${silenceMsMax} ms`)), silenceMsMax);
    const { done, value } = await reader
      .read()
      .catch((cause) => Promise.reject(new Cut('the connection was cut', { cause })))
      .finally(() => clearTimeout(timer));
    if (done) return;
    // A large event has many chunks without a line end: they are joined once.
    rest += value;
    if (!value.includes('\n')) continue;
    const lines = rest.split('\n');
    rest = lines.pop()!;
    for (let line of lines) {
      if (line.endsWith('\r')) line = line.slice(0, -1);
      if (line) {
        readField(event, line);
      } else {
        yield event;
        event = {};
      }
    }
  }
}

/** Reads a line, such as `data: 1`. The first space of a value does not count. */
function readField(event: StreamEvent, line: string): void {
  const colon = line.indexOf(':');
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? '' : line.slice(line[colon + 1] === ' ' ? colon + 2 : colon + 1);
  if (name === 'data') event.data = event.data === undefined ? value : `${event.data}\n${value}`;
  else if (name === 'id') event.id = value;
  else if (name === 'event') event.name = value;
  else if (name === 'retry' && /^\d+$/.test(value)) event.retryMs = Number(value);
}
