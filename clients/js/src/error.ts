import type { EndReason } from './types.js';

/** The code of a response that does not come from Encke. */
export const NOT_ENCKE = 'not_encke';
const TEXT_CHARS_MAX = 200;

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
  /** Of an append: an earlier attempt, whose response was lost, may have stored the data. */
  mayBeDone = false;

  constructor(status: number, code: string, message: string, more: { endReason?: EndReason; retryAfter?: number; expectedSeq?: number } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.endReason = more.endReason;
    this.retryAfter = more.retryAfter;
    this.expectedSeq = more.expectedSeq;
  }

  /** Whether the same request may succeed later: the server is busy, stops or fails. 507 says that there is no room. */
  get isTransient(): boolean {
    return this.status === 408 || this.status === 429 || (this.status >= 500 && ![501, 505, 507].includes(this.status));
  }

  /** Reads the problem body of a response. A proxy may send another body: then `code` is `http`, and a short text is part of the message. */
  static async fromResponse(response: Response): Promise<EnckeError> {
    // A body that is cut rejects: the refusal is not known.
    const text = await response.text();
    let error: { code?: string; message?: string } | undefined;
    try {
      error = JSON.parse(text).error;
    } catch {
      // No problem body.
    }
    const { status, headers } = response;
    const expected = headers.get('Producer-Expected-Seq');
    const said = headers.get('Content-Type')?.startsWith('text/plain') ? `: ${text.trim().slice(0, TEXT_CHARS_MAX)}` : '';
    return new EnckeError(status, error?.code ?? 'http', error?.message ?? `status ${status}${said}`, {
      endReason: (headers.get('Encke-End-Reason') as EndReason | null) ?? undefined,
      retryAfter: retryAfterOf(headers),
      expectedSeq: expected === null ? undefined : Number(expected),
    });
  }
}

/** Seconds, or a date by the clock of the server. Anything else counts as absent, and so does a time that is not in the future. */
function retryAfterOf(headers: Headers): number | undefined {
  const text = headers.get('Retry-After') ?? '';
  const at = Date.parse(text);
  const seconds = /^\d+$/.test(text) ? Number(text) : (at - (Date.parse(headers.get('Date') ?? '') || Date.now())) / 1_000;
  return seconds > 0 ? seconds : undefined;
}
