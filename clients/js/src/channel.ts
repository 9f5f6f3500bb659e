import { abortable } from './abortable.js';
import { Backoff, TIMER_MS_MAX } from './backoff.js';
import { copyOfBytes, jsonOf } from './body.js';
import { Appends, type Appended } from './channel-appends.js';
import { ChannelSubscription, errorOf, type ChannelSubscribeOptions } from './channel-subscription.js';
import { EnckeError } from './error.js';
import { notify } from './notify.js';
import { type OriginOptions, tokenOf } from './origin.js';
import type { Ack, ConnectionState, EndReason } from './types.js';

/** The part of the standard's WebSocket that a channel uses. */
export interface Socket {
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  send(text: string): void;
  close(code?: number): void;
}

export interface ChannelOptions extends OriginOptions {
  /** In place of the global constructor, which Node has from version 22 on; `ws` of npm has one. */
  WebSocket?: new (url: string, protocols: string[]) => Socket;
  onState?: (state: ConnectionState, error?: unknown) => void;
}

export interface AppendOptions {
  /** The data is a string of the stream's own type, not JSON. */
  text?: boolean;
  ack?: Ack;
  /** Closes the stream behind the data. */
  close?: boolean;
  endReason?: EndReason;
  /** Ends the wait for the acknowledgement. The data may be stored, also later. */
  signal?: AbortSignal;
}

/** Close codes at which the client has a fault, or no rights: it does not come back. */
const FINAL_CODES = [1002, 1003, 1007, 1008, 4403];
/** A message was too large. */
const TOO_LARGE = 1009;
const TOKEN_ENDED = 4401;
/** A quiet connection is asked for a response: a network that is gone sends no message. */
const PROBE_MS = 30_000;
/** A name that no subscription of a client has. */
const PROBE_STREAM = 'encke/probe';
/** A connection that was open for so long was no failure, even if no record came. */
const STEADY_MS = 5_000;
/** A token is renewed at this share of the time that it has left. */
const RENEWAL_SHARE = 0.8;
/** The shortest time between two renewals. */
const RENEWAL_MS_MIN = 1_000;
/** The same with a server that says only `until`: by a clock of the client that is ahead, a new token may have ended already. */
const RENEWAL_BY_CLOCK_MS_MIN = 30_000;

/**
 * One WebSocket (docs/websocket.md) for subscriptions that come and go, and for appends with acknowledgements. After a cut it connects
 * again: subscriptions go on where they were, and what was not acknowledged is sent again, which the server stores once.
 */
export class Channel {
  readonly #options: ChannelOptions;
  readonly #url: string;
  readonly #backoff = new Backoff();
  readonly #closing = new AbortController();
  /** By name, which the server has once. */
  readonly #subscriptions = new Map<string, ChannelSubscription>();
  readonly #appends: Appends;
  #socket?: Socket;
  /** The server takes messages. */
  #isOpen = false;
  /** When it was opened, on the monotonic clock. */
  #openedAt = Infinity;
  #lastId = 0;
  #authenticateId?: number;
  #refusedTokens = 0;
  #hasHeard = false;
  #renewal?: ReturnType<typeof setTimeout>;
  #probe?: ReturnType<typeof setInterval>;

  /** Throws `no_websocket` where there is no WebSocket, as in Node 20, and none is given. */
  constructor(options: ChannelOptions = {}) {
    if (!(options.WebSocket ?? globalThis.WebSocket)) throw new EnckeError(0, 'no_websocket', 'there is no global WebSocket: give the option `WebSocket`, such as that of the package `ws`');
    this.#options = options;
    this.#url = new URL('/v1/events', options.base ?? globalThis.location?.href).href.replace('http', 'ws');
    this.#appends = new Appends(() => ++this.#lastId, (message) => this.#sendIfOpen(message), this.#closing.signal);
    void this.#connect();
  }

  /** Follows a stream, a pattern or a list of them. A channel has one subscription of a name. */
  subscribe<Message = any>(options: ChannelSubscribeOptions<Message>): ChannelSubscription<Message> {
    const subscription = new ChannelSubscription<Message>(options, {
      send: (message) => this.#sendNew(message),
      remove: (ended) => {
        if (this.#subscriptions.get(ended.name) === ended) this.#subscriptions.delete(ended.name);
      },
    });
    if (this.#closing.signal.aborted) throw this.#closing.signal.reason;
    if (this.#subscriptions.has(subscription.name)) throw new EnckeError(409, 'already_subscribed', `the channel has ${subscription.name}`);
    this.#subscriptions.set(subscription.name, subscription);
    if (this.#isOpen) subscription.begin();
    return subscription;
  }

  /**
   * Appends to a stream, exactly once. Several may be under way, and keep their order. Of a stream of JSON an array is one message for
   * each of its elements; bytes are sent as they are.
   */
  async append(stream: string, data: unknown, { text, signal, ...further }: AppendOptions = {}): Promise<Appended> {
    const bytes = copyOfBytes(data);
    const content = bytes ? { base64: base64(bytes) } : text ? { text: data } : { data };
    // A copy, because the caller may change the data before it is sent.
    const message = JSON.parse(jsonOf({ type: 'append', stream, ...content, ...further }));
    return this.#whileOpen(() => this.#appends.append(message), signal);
  }

  /** Asks the writer of a stream to stop. */
  async stop(stream: string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#whileOpen(() => this.#appends.request({ type: 'stop', stream }), signal);
  }

  /** Ends the connection and all that uses it. */
  close(): void {
    this.#fail(new EnckeError(0, 'channel_closed', 'the channel was closed'), true);
  }

  async #whileOpen<T>(operation: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    this.#closing.signal.throwIfAborted();
    signal?.throwIfAborted();
    return await abortable(operation(), signal);
  }

  async #connect(): Promise<void> {
    const { WebSocket = globalThis.WebSocket } = this.#options;
    let token: string | undefined;
    try {
      token = await tokenOf(this.#options.token);
    } catch (error) {
      return this.#reconnect(error);
    }
    if (this.#closing.signal.aborted) return;
    let socket: Socket;
    try {
      socket = new WebSocket!(this.#url, ['encke.v1']);
    } catch (error) {
      return this.#fail(error); // The URL, or its protocol on this page, is not allowed.
    }
    this.#socket = socket;
    socket.onopen = () => {
      if (socket !== this.#socket) return;
      if (token == null) this.#opened();
      else this.#authenticate(token);
    };
    socket.onmessage = ({ data }) => {
      if (socket !== this.#socket) return;
      this.#hasHeard = true;
      try {
        this.#receive(parse(data), data.length);
      } catch {
        socket.close();
        this.#closed(socket, new EnckeError(0, 'bad_message', 'the server sent a message that is none of its protocol'));
      }
    };
    socket.onerror = () => {}; // `onclose` follows.
    socket.onclose = ({ code, reason }) => this.#closed(socket, new EnckeError(0, `close_${code}`, reason || `the connection was closed with ${code}`), code);
    this.#hasHeard = true;
    this.#probe = setInterval(() => this.#checkSilence(socket), PROBE_MS);
  }

  /** Gives up a socket that sends nothing for two intervals, though it was asked. The response to the probe is an error, and belongs to no subscription. */
  #checkSilence(socket: Socket): void {
    if (!this.#hasHeard) {
      socket.close();
      return this.#closed(socket, new EnckeError(0, 'close_1006', 'the connection is silent'));
    }
    this.#hasHeard = false;
    if (this.#isOpen) this.#send({ type: 'unsubscribe', stream: PROBE_STREAM });
  }

  get #renewsToken(): boolean {
    return typeof this.#options.token === 'function';
  }

  #authenticate(token: string): void {
    this.#authenticateId = ++this.#lastId;
    this.#send({ type: 'authenticate', id: this.#authenticateId, token });
  }

  #opened(): void {
    this.#isOpen = true;
    this.#openedAt = performance.now();
    notify(this.#options.onState, 'live');
    for (const subscription of this.#subscriptions.values()) subscription.begin();
    this.#appends.resend();
  }

  #closed(socket: Socket, error: EnckeError, code = 0): void {
    if (socket !== this.#socket || this.#closing.signal.aborted) return;
    if (performance.now() - this.#openedAt > STEADY_MS) this.#backoff.reset();
    this.#leaveSocket();
    const isFinal = code === TOO_LARGE ? !this.#appends.rejectLargest(error) : FINAL_CODES.includes(code) || (code === TOKEN_ENDED && !this.#renewsToken);
    if (isFinal) return this.#fail(error);
    this.#reconnect(error);
  }

  #reconnect(error: unknown): void {
    if (this.#closing.signal.aborted) return;
    if (error instanceof EnckeError && error.status && !error.isTransient) return this.#fail(error);
    notify(this.#options.onState, 'away', error);
    this.#backoff.wait(this.#closing.signal).then(
      () => this.#connect(),
      () => {}, // The channel was closed.
    );
  }

  /** Ends everything. */
  #fail(error: unknown, isWanted = false): void {
    this.#closing.abort(error);
    const socket = this.#socket;
    this.#leaveSocket();
    socket?.close(1000);
    for (const subscription of [...this.#subscriptions.values()]) subscription.finish(isWanted ? undefined : error);
    this.#appends.fail(error);
  }

  #leaveSocket(): void {
    this.#socket = undefined;
    this.#isOpen = false;
    this.#openedAt = Infinity;
    this.#appends.lose();
    clearTimeout(this.#renewal);
    clearInterval(this.#probe);
  }

  #receive(message: any, chars: number): void {
    const { id, type } = message;
    if (id !== undefined && id === this.#authenticateId) return this.#authenticated(message);
    // A server that closes each connection after it has opened it is asked less and less often.
    if (type === 'records' || type === 'appended') this.#backoff.reset();
    this.#appends.receive(message);
    // An acknowledgement has an offset, and is no position of a subscription: the records before it may still come.
    if (type === 'appended') return;
    this.#subscriptions.get(message.subscription ?? message.stream)?.receive(message, chars);
  }

  #authenticated(message: any): void {
    if (message.type === 'error') {
      const error = errorOf(message);
      // A token that is refused once may have ended on its way.
      if ((error.status === 401 && this.#renewsToken && !this.#refusedTokens++) || error.isTransient) this.#socket?.close(1000);
      else this.#fail(error);
      return;
    }
    this.#refusedTokens = 0;
    if (!this.#isOpen) this.#opened();
    const { until, expiresInMs } = message;
    const ms = Number.isFinite(expiresInMs) ? Math.max(RENEWAL_MS_MIN, expiresInMs * RENEWAL_SHARE) : Math.max(RENEWAL_BY_CLOCK_MS_MIN, (until - Date.now()) * RENEWAL_SHARE);
    // The token does not end, or the server does not say when.
    if (!Number.isFinite(ms) || !this.#renewsToken) return;
    clearTimeout(this.#renewal);
    this.#renewal = setTimeout(() => void this.#renew(), Math.min(TIMER_MS_MAX, ms));
  }

  /** Gets a new token before the old one ends. If that fails, the connection ends with the token, and the next one asks again. */
  async #renew(): Promise<void> {
    const socket = this.#socket;
    const token = await tokenOf(this.#options.token).catch(() => undefined);
    if (token != null && socket && socket === this.#socket) this.#authenticate(token);
  }

  #sendNew(message: Record<string, any>): number {
    const id = ++this.#lastId;
    this.#sendIfOpen({ ...message, id });
    return id;
  }

  #sendIfOpen(message: Record<string, any>): boolean {
    if (this.#isOpen) this.#send(message);
    return this.#isOpen;
  }

  #send(message: Record<string, any>): void {
    this.#socket?.send(JSON.stringify(message));
  }
}

/** Throws if the data is no object of JSON. */
function parse(data: string): any {
  const value = JSON.parse(data);
  if (typeof value !== 'object') throw new TypeError(typeof value);
  return value;
}

/** In pieces, because a call has a bounded number of arguments. */
function base64(bytes: Uint8Array): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}
