import { abortable } from './abortable.js';
import { TIMER_MS_MAX } from './backoff.js';
import { EnckeError } from './error.js';

/** One event of an event stream: the lines between two empty ones. */
export interface StreamEvent {
  id?: string;
  name?: string;
  data?: string;
  retryMs?: number;
}

/** A body did not come to its end. */
export class Cut extends Error {}

/** Waits for something of a connection, and aborts `cut` if it does not come within `silenceMsMax`. Rejects with a `Cut`, or the error of the server. */
export async function unlessSilent<T>(awaited: Promise<T>, silenceMsMax: number, cut: AbortController): Promise<T> {
  const timer = setTimeout(() => cut.abort(new Error(`nothing came for ${silenceMsMax} ms`)), Math.min(silenceMsMax, TIMER_MS_MAX));
  try {
    return (await abortable(awaited, cut.signal)) as T;
  } catch (cause) {
    throw cause instanceof EnckeError ? cause : new Cut('the connection was cut', { cause });
  } finally {
    clearTimeout(timer);
  }
}

/**
 * The events of a body of `text/event-stream`, also those without data, which state a position or a time to retry. Comments are
 * left out. A body that is silent for `silenceMsMax` is given up: then `cut` is aborted, which ends the connection.
 */
export async function* eventsOf(body: ReadableStream<Uint8Array>, silenceMsMax: number, cut: AbortController): AsyncGenerator<StreamEvent, void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let event: StreamEvent = {};
  let rest = '';
  let endsWithCr = false;
  try {
    for (;;) {
      const { done, value } = await unlessSilent(reader.read(), silenceMsMax, cut);
      if (done) return;
      // A line ends with LF, CR or CRLF, and a chunk may end between CR and LF.
      rest += endsWithCr && value[0] === '\n' ? value.slice(1) : value;
      if (value) endsWithCr = value.endsWith('\r');
      // A large event has many chunks without a line end: they are joined once.
      if (!/[\r\n]/.test(value)) continue;
      const lines = rest.split(/\r\n?|\n/);
      rest = lines.pop()!;
      for (const line of lines) {
        if (line) {
          readField(event, line);
        } else {
          yield event;
          event = {};
        }
      }
    }
  } finally {
    void reader.cancel().catch(() => {});
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
