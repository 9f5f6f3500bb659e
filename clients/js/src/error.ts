import type { EndReason } from './types.js';

/** The code of a response that does not come from Encke. */
export const NOT_ENCKE = 'not_encke';
const TEXT_CHARS_MAX = 200;
/** How much of the body of an error is read, and for how long. */
export const ERROR_BYTES_MAX = 65_536;
const ERROR_BODY_MS_MAX = 10_000;
/** Refusals by proxies that no repetition changes, and those that are repeated without a limit. */
const STATUSES_OF_PROXIES = [401, 407, 408, 413, 429];

/**
 * A refusal of the server, which has changed nothing, or an operation that the client itself has ended. `status`, `code` and `message` are
 * those of the problem body (docs/reading.md, Errors), or of the message `error` of a WebSocket. Programs decide by `code`, which does not
 * change. Codes of the client are in its README.
 */
export class EnckeError extends Error {
  override readonly name = 'EnckeError';
  /** The status of HTTP, also over a WebSocket. 0: the client itself has ended the operation. */
  readonly status: number;
  readonly code: string;
  /** Why the stream has ended, of an append that is refused with `closed`. */
  readonly endReason?: EndReason;
  /** Seconds after which the client may try again. */
  readonly retryAfter?: number;
  /** The number that the server expects from a producer, of `sequence_gap`. */
  readonly expectedSeq?: number;
  /** The response may come from something else than Encke, such as a portal, or a balancer without a server behind it. */
  readonly isForeign: boolean;
  /** Of an append or a job: an earlier attempt, whose response was lost, may have stored the data. */
  mayBeDone = false;

  constructor(status: number, code: string, message: string, more: { endReason?: EndReason; retryAfter?: number; expectedSeq?: number; isForeign?: boolean } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.endReason = more.endReason;
    this.retryAfter = more.retryAfter;
    this.expectedSeq = more.expectedSeq;
    this.isForeign = more.isForeign ?? code === NOT_ENCKE;
  }

  /** Whether the same request may succeed later: the server is busy, stops or fails. 507 says that there is no room. */
  get isTransient(): boolean {
    return this.status === 408 || this.status === 429 || (this.status >= 500 && ![501, 505, 507].includes(this.status));
  }

  /** Reads the problem body of a response. A proxy may send another body: then `code` is `http`, and a short text is part of the message. */
  static async fromResponse(response: Response): Promise<EnckeError> {
    const { status, headers } = response;
    const type = headers.get('Content-Type') ?? '';
    // A body that is cut rejects: the refusal is not known.
    const text = await textOf(response);
    let error: { code?: unknown; message?: unknown } | undefined;
    try {
      error = JSON.parse(text).error;
    } catch {
      // No problem body.
    }
    const stringOf = (value: unknown) => (typeof value === 'string' ? value : undefined);
    const code = stringOf(error?.code);
    const isText = type.startsWith('text/plain');
    const isProblem = code !== undefined || type.startsWith('application/problem+json'); // The response to HEAD has no body.
    // A server refuses so at the port where it only redirects to https.
    const isRedirector = isText && status === 403;
    const expected = headers.get('Producer-Expected-Seq');
    return new EnckeError(status, code ?? 'http', stringOf(error?.message) ?? `status ${status}${isText ? `: ${text.trim().slice(0, TEXT_CHARS_MAX)}` : ''}`, {
      endReason: (headers.get('Encke-End-Reason') as EndReason | null) ?? undefined,
      retryAfter: retryAfterOf(headers),
      expectedSeq: expected === null ? undefined : Number(expected),
      isForeign: !isProblem && status >= 400 && status < 500 && !STATUSES_OF_PROXIES.includes(status) && !isRedirector,
    });
  }
}

/** The text of a body, as far as it comes within the bounds. */
async function textOf(response: Response): Promise<string> {
  const reader = response.body?.getReader?.();
  if (!reader) return response.text();
  const decoder = new TextDecoder();
  let text = '';
  // A read that waits is done then.
  const end = () => void reader.cancel().catch(() => {});
  const timer = setTimeout(end, ERROR_BODY_MS_MAX);
  try {
    while (text.length < ERROR_BYTES_MAX) {
      const { done, value } = await reader.read();
      if (done) break;
      text += decoder.decode(value, { stream: true });
    }
    return text;
  } finally {
    clearTimeout(timer);
    end();
  }
}

/** Seconds, or a date by the clock of the server. Anything else counts as absent, and so does a time that is not in the future. */
function retryAfterOf(headers: Headers): number | undefined {
  const text = headers.get('Retry-After') ?? '';
  const at = Date.parse(text);
  const seconds = /^\d+$/.test(text) ? Number(text) : (at - (Date.parse(headers.get('Date') ?? '') || Date.now())) / 1_000;
  return seconds > 0 ? seconds : undefined;
}
