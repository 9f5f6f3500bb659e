import { Backoff } from './backoff.js';
import { EnckeError } from './error.js';
import type { ConnectionState } from './types.js';

/**
 * A token, or what gets one, or `undefined` for none. It is called for each connection, and once more at 401. If it rejects, it is called again later,
 * unless it rejects with an `EnckeError` that is not transient.
 */
export type Token = string | (() => string | undefined | Promise<string | undefined>);

export interface OriginOptions {
  /** Where the server is, such as `https://push.example.com`; in a page its own origin by default. */
  base?: string | URL;
  /** Sent as `Authorization: Bearer`. */
  token?: Token;
  /** Cookies and client certificates for another origin: `include`. */
  credentials?: RequestCredentials;
  /** In place of the global function. */
  fetch?: typeof fetch;
}

export interface Attempts {
  signal: AbortSignal;
  backoff?: Backoff;
  onState?: (state: ConnectionState, error?: unknown) => void;
}

/** A server, and how requests to it are authorised and repeated. */
export class Origin {
  readonly base: URL;
  readonly #options: OriginOptions;

  constructor(options: OriginOptions) {
    this.base = new URL('/', options.base ?? globalThis.location?.href);
    this.#options = options;
  }

  /** The URL of a stream. The segments of its name may have any characters. */
  stream(name: string): URL {
    return this.path(`/v1/stream/${name.split('/').map(encodeURIComponent).join('/')}`);
  }

  path(path: string): URL {
    return new URL(path, this.base);
  }

  /** The token of now. */
  async token(): Promise<string | undefined> {
    const { token } = this.#options;
    return typeof token === 'function' ? token() : token;
  }

  /** Whether a refused token can be renewed. */
  get renewsToken(): boolean {
    return typeof this.#options.token === 'function';
  }

  /** Makes a request, and once more with a new token at 401. A response that is not 2xx is thrown as an `EnckeError`. */
  async request(url: URL, init: RequestInit): Promise<Response> {
    for (let renews = this.renewsToken; ; renews = false) {
      const headers = new Headers(init.headers);
      const token = await this.token();
      if (token !== undefined) headers.set('Authorization', `Bearer ${token}`);
      const { fetch = globalThis.fetch, credentials } = this.#options;
      const response = await fetch(url, { credentials, ...init, headers });
      if (response.ok) return response;
      const error = await EnckeError.fromResponse(response);
      if (!renews || response.status !== 401) throw error;
    }
  }

  /**
   * Makes a request until the server has accepted or refused it. Networks fail and servers restart: so does it for what must have no
   * effect twice, and only requests that may be repeated belong here.
   */
  async persist(url: URL, init: RequestInit, { signal, backoff = new Backoff(), onState }: Attempts): Promise<Response> {
    for (;;) {
      let retryAfter;
      try {
        return await this.request(url, { ...init, signal });
      } catch (error) {
        if (signal.aborted) throw signal.reason;
        if (error instanceof EnckeError) {
          if (!error.isTransient) throw error;
          ({ retryAfter } = error);
        }
        onState?.('away', error);
      }
      await backoff.wait(signal, retryAfter && retryAfter * 1_000);
    }
  }
}

/** A signal that is never aborted, for operations without one. */
export const never = (): AbortSignal => new AbortController().signal;

/** A query. Servers take `+` for itself, and not for a space as forms do. */
export const queryOf = (fields: Record<string, string> | string[][]): string => new URLSearchParams(fields).toString().replaceAll('+', '%20');
