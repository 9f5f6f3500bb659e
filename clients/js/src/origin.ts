import { abortable } from './abortable.js';
import { Backoff } from './backoff.js';
import { bytesOf } from './body.js';
import { EnckeError } from './error.js';
import { ANY_SUCCESS, checkResponse, discard, type Expected } from './expected.js';
import { notify } from './notify.js';
import type { ConnectionState } from './types.js';

/**
 * A token, or what gets one, or `undefined` for none. It is called for each connection, and once more at 401. If it rejects, it is called again later,
 * unless it rejects with an `EnckeError` that is not transient.
 */
export type Token = string | (() => string | undefined | Promise<string | undefined>);

export interface OriginOptions {
  /** Where the server is, such as `https://push.example.com`, without a user or a path; in a page its own origin by default. */
  base?: string | URL;
  /** Sent as `Authorization: Bearer`. */
  token?: Token;
  /** Cookies and client certificates for another origin: `include`. */
  credentials?: RequestInit['credentials'];
  /** In place of the global function. */
  fetch?: typeof fetch;
  /** An attempt of a call failed (`away`, with the reason) and is repeated, or its repetition succeeded (`live`). */
  onState?: (state: ConnectionState, error?: unknown) => void;
  /**
   * Milliseconds for which a request is repeated while something else than Encke answers it, such as a portal; 60,000 by default. A subscription
   * that has been live has no such limit.
   */
  foreignMsMax?: number;
}

export interface Attempts {
  signal: AbortSignal;
  backoff?: Backoff;
  onState?: OriginOptions['onState'];
  expected?: Expected;
  foreignMsMax?: number;
  /** When the first of the last attempts was answered by something else than Encke. */
  foreignSince?: number;
  /** Set when an attempt failed in a way that does not tell whether the server has carried it out. */
  mayBeDone?: boolean;
}

const REDIRECTS_MAX = 5;
const FOREIGN_MS_MAX = 60_000;
/** A smaller body fits into the buffers of a connection, so that its refusal can be read. */
const UPLOAD_BYTES_MIN = 65_536;
/** Consecutive uploads that fail while the server answers, after which a request is given up. */
const UPLOADS_MAX = 5;
const PROBE_MS_MAX = 10_000;

/** A server, and how requests to it are authorised and repeated. */
export class Origin {
  readonly base: URL;
  readonly #options: OriginOptions;

  constructor(options: OriginOptions) {
    const base = new URL(options.base ?? globalThis.location?.origin);
    const { protocol, username, password, host, pathname } = base;
    if (!/^https?:$/.test(protocol) || username || password || pathname !== '/') {
      throw new TypeError(`the address of a server is one of http or https, without a user or a path: ${protocol}//${host}${pathname}`);
    }
    this.base = base;
    this.#options = options;
  }

  /** The URL of a stream. The segments of its name may have any characters, and none is `.` or `..`. */
  stream(name: string): URL {
    return this.path(`/v1/stream/${name.split('/').map(segment).join('/')}`);
  }

  path(path: string): URL {
    const url = new URL(path, this.base);
    // URLs resolve `.` and `..`, however they are encoded: the request would go to another resource.
    if (url.pathname !== path.split('?', 1)[0]) throw new EnckeError(0, 'bad_path', `no name has "." or ".." as a segment: ${path}`);
    return url;
  }

  /** The token of now. */
  async token(): Promise<string | undefined> {
    return tokenOf(this.#options.token);
  }

  /** Whether a refused token can be renewed. */
  get renewsToken(): boolean {
    return typeof this.#options.token === 'function';
  }

  /**
   * Makes a request, and once more with a new token at 401. A response that is not `expected` is thrown as an `EnckeError`. The call settles
   * as soon as the signal of `init` is aborted, whatever the function for tokens and `fetch` do.
   */
  request(url: URL, init: RequestInit, expected?: Expected): Promise<Response> {
    return abortable(this.#attempt(url, init, expected, () => {}), init.signal ?? undefined);
  }

  /**
   * Makes a request until the server has accepted or refused it. Networks fail and servers restart: so does it for what must have no
   * effect twice, and only requests that may be repeated belong here.
   */
  async persist(url: URL, init: RequestInit, attempts: Attempts): Promise<Response> {
    const { signal, expected } = attempts;
    attempts.onState ??= this.#options.onState;
    attempts.foreignMsMax ??= this.#options.foreignMsMax;
    // A field with a character that no field can have throws here, and is not repeated.
    const headers = new Headers(init.headers);
    for (let isRepeated = false, uploads = 0; ; isRepeated = true) {
      let isSent = false;
      try {
        const response = await abortable(this.#attempt(url, { ...init, headers, signal }, expected, () => (isSent = true)), signal);
        if (isRepeated) notify(attempts.onState, 'live');
        return response;
      } catch (error) {
        const isAnswer = error instanceof EnckeError;
        const isRefusal = isAnswer && !error.isForeign && !error.mayBeDone && (error.status === 429 || !error.isTransient);
        if (isSent && !isRefusal) attempts.mayBeDone = true;
        if (signal.aborted) throw signal.reason;
        const isCutUpload = isSent && !isAnswer && bytesOf(init.body) >= UPLOAD_BYTES_MIN && (await this.#isReachable(signal));
        uploads = isCutUpload ? uploads + 1 : 0;
        if (uploads === UPLOADS_MAX) {
          const why = `${bytesOf(init.body)} bytes to ${url} were cut off ${uploads} times, though the server answers: it may refuse bodies of this size`;
          throw new EnckeError(0, 'upload_failed', why);
        }
        await recover(error, attempts);
      }
    }
  }

  async #attempt(url: URL, init: RequestInit, expected = ANY_SUCCESS, onSend: () => void): Promise<Response> {
    for (let renews = this.renewsToken; ; renews = false) {
      const headers = new Headers(init.headers);
      const token = await this.token();
      init.signal?.throwIfAborted();
      if (token != null) setToken(headers, token);
      onSend();
      const response = await this.#fetch(url, { credentials: this.#options.credentials, ...init, headers, redirect: 'manual' });
      if (response.ok) {
        checkResponse(response, `${init.method ?? 'GET'} ${url}`, expected);
        return response;
      }
      const error = await EnckeError.fromResponse(response);
      if (!renews || response.status !== 401) throw error;
    }
  }

  /**
   * Follows the redirects that keep method and body, and lead to the same origin or from http to https of the same host. Any other would send
   * the token to somebody else, or turn a POST into a GET. Browsers do not tell where a redirect leads, so they follow none.
   */
  async #fetch(url: URL, init: RequestInit): Promise<Response> {
    const { fetch = globalThis.fetch } = this.#options;
    for (let count = 0; ; count += 1) {
      const response = await fetch(url, init);
      const { status, headers, type, redirected } = response;
      if (type !== 'opaqueredirect' && !redirected && ![301, 302, 303, 307, 308].includes(status)) return response;
      discard(response);
      const location = redirected ? response.url : headers.get('Location');
      const target = location === null ? undefined : targetOf(location, url);
      const isHttpsForm = url.protocol === 'http:' && target?.protocol === 'https:' && target.hostname === url.hostname;
      // `fetch` takes no address with a user.
      const isWithin = target && !target.username && !target.password && (target.origin === url.origin || isHttpsForm);
      if (!isWithin || ![307, 308].includes(status) || count === REDIRECTS_MAX) {
        const why = `${init.method ?? 'GET'} ${url} is redirected to ${target ?? 'an address that is not known'}: give the address of Encke itself`;
        const error = new EnckeError(status, 'redirected', why);
        // A `fetch` that has followed it may have sent a POST to the end.
        error.mayBeDone = redirected;
        throw error;
      }
      url = target;
    }
  }

  /** Whether the server answers a request without a body. */
  async #isReachable(signal: AbortSignal): Promise<boolean> {
    const { fetch = globalThis.fetch } = this.#options;
    try {
      // With `no-cors` a page learns that there is an answer, also if it may not read it.
      const probe = fetch(this.base, { method: 'HEAD', mode: 'no-cors', cache: 'no-store', signal: AbortSignal.timeout(PROBE_MS_MAX) });
      return (await abortable(probe, signal)).status < 500;
    } catch (error) {
      if (signal.aborted) throw error;
      return false;
    }
  }
}

export const tokenOf = async (token?: Token): Promise<string | undefined> => (typeof token === 'function' ? token() : token);

/** Waits before the next attempt. Throws the error of the last one if it is final. */
export async function recover(error: unknown, attempts: Attempts, serverMs?: number): Promise<void> {
  const { signal, onState, foreignMsMax = FOREIGN_MS_MAX } = attempts;
  if (signal.aborted) throw signal.reason;
  const answer = error instanceof EnckeError ? error : undefined;
  const now = performance.now();
  attempts.foreignSince = answer?.isForeign ? (attempts.foreignSince ?? now) : undefined;
  if (answer && (answer.isForeign ? now - attempts.foreignSince! >= foreignMsMax : !answer.isTransient)) throw error;
  onState?.('away', error);
  await (attempts.backoff ??= new Backoff()).wait(signal, answer?.retryAfter === undefined ? serverMs : answer.retryAfter * 1_000);
}

/** A name as a segment of a path. */
export function segment(name: string): string {
  try {
    return encodeURIComponent(name);
  } catch {
    throw new EnckeError(0, 'bad_path', `half of a surrogate pair has no UTF-8: ${JSON.stringify(name)}`);
  }
}

function targetOf(location: string, url: URL): URL | undefined {
  try {
    return new URL(location, url);
  } catch {
    return undefined;
  }
}

/** A signal that is never aborted, for operations without one. */
export const never = (): AbortSignal => new AbortController().signal;

/** A query. Servers take `+` for itself, and not for a space as forms do. */
export const queryOf = (fields: Record<string, string> | string[][]): string => new URLSearchParams(fields).toString().replaceAll('+', '%20');

function setToken(headers: Headers, token: string): void {
  try {
    headers.set('Authorization', `Bearer ${token}`);
  } catch {
    throw new EnckeError(0, 'bad_token', 'the token has a character that no field of a request can have');
  }
}
