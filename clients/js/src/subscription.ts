import { onAbort } from './abortable.js';
import { Backoff } from './backoff.js';
import { EnckeError, NOT_ENCKE } from './error.js';
import { Cut, eventsOf, type StreamEvent, unlessSilent } from './event-stream.js';
import type { Expected } from './expected.js';
import { Following } from './following.js';
import { type Attempts, Origin, type OriginOptions, queryOf, recover, segment } from './origin.js';
import { endsLikePosition, isPattern, nameOf, type Named } from './stream-names.js';
import type { End, EndReason, From, StreamRecord, SubscriberCallbacks } from './types.js';

/** A server sends something every 30 s by default (`heartbeat`). */
const SILENCE_MS_MAX = 75_000;
/** A connection that lasted so long was no failure, even if no record came. */
const STEADY_MS = 5_000;
const EVENTS: Expected = { statuses: [200, 204], type: 'text/event-stream' };
const HEAD: Expected = { statuses: [200], fields: ['Stream-Next-Offset'] };

export interface SubscribeOptions<Message = any> extends OriginOptions, SubscriberCallbacks<Message> {
  /** The name of a stream, or a pattern such as `chat/**`. */
  stream?: string;
  /** Names and patterns; some may begin elsewhere than the others. */
  streams?: Named[];
  /** In place of names the URL of one stream: a signed one, or that of another server of the Durable Streams protocol. */
  url?: string | URL;
  /** With `url`: whether the stream has JSON, which is the default, or text. */
  json?: boolean;
  /** Where to begin; `now` by default. */
  from?: From;
  /** Begin so many messages before the end, in place of `from`. */
  last?: number;
  /** Go on behind this id, which an earlier subscription to the same streams had as its `position`. */
  after?: string;
  /** Each record has its time. */
  times?: boolean;
  /** Ends the subscription, as `close()` does. */
  signal?: AbortSignal;
  /** Milliseconds without a byte, also before a response, after which a connection counts as lost: 75,000 by default, more than two heartbeats of the server. */
  silenceMsMax?: number;
}

/**
 * Follows one or many streams by server-sent events (docs/events.md). Each record comes once and in order, over cuts, restarts of the
 * server and ends of tokens. With `onRecord` it begins at once; without, iterate over the result.
 */
export function subscribe<Message = any>(options: SubscribeOptions<Message>): Subscription<Message> {
  return new Subscription(options);
}

export class Subscription<Message = any> extends Following<Message> {
  readonly #options: SubscribeOptions<Message>;
  readonly #origin: Origin;
  readonly #url?: URL;
  /** With `url` there are no names. */
  readonly #names: string[];
  readonly #closing = new AbortController();
  readonly #records: AsyncGenerator<StreamRecord<Message>, void>;
  #stopRequested = false;
  #release?: () => void;

  constructor(options: SubscribeOptions<Message>) {
    const { url, stream, streams = stream === undefined ? [] : [stream], signal, onRecord, after, last } = options;
    super(options);
    if ((url === undefined) === (streams.length === 0)) throw new TypeError('name `stream`, `streams` or `url`');
    const ambiguous = last === undefined ? undefined : streams.find((entry) => typeof entry === 'string' && endsLikePosition(entry));
    if (ambiguous !== undefined) throw new TypeError(`\`last\` cannot be used with ${ambiguous}, whose name ends like a position: use \`from\``);
    this.#options = options;
    this.#url = url === undefined ? undefined : new URL(url, options.base ?? globalThis.location?.href);
    this.#origin = new Origin(this.#url ? { ...options, base: new URL('/', this.#url) } : options);
    this.#names = streams.map(nameOf);
    this.#names.forEach(segment); // Throws for a name that no request can have.
    this.position = after;
    if (signal?.aborted) this.close();
    else if (signal) this.#release = onAbort(signal, () => this.close());
    this.#records = this.#run();
    if (onRecord) void this.#deliver(onRecord);
  }

  [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void> {
    return this.iterate(this.#records);
  }

  close(): void {
    this.#closing.abort();
    this.#release?.();
    this.settle();
  }

  async #deliver(onRecord: (record: StreamRecord<Message>) => unknown): Promise<void> {
    try {
      for await (const record of this.#records) {
        try {
          await onRecord(record);
        } catch (error) {
          this.fail(error);
          return;
        }
      }
    } catch {
      // `closed` has it.
    }
  }

  async *#run(): AsyncGenerator<StreamRecord<Message>, void> {
    try {
      yield* this.#connections();
    } catch (error) {
      if (this.#closing.signal.aborted) return;
      this.fail(error);
      throw error;
    } finally {
      this.close(); // Also when the iteration was left.
    }
  }

  /** Connects again until all streams have ended. */
  async *#connections(): AsyncGenerator<StreamRecord<Message>, void> {
    const { signal } = this.#closing;
    const { onState, foreignMsMax, silenceMsMax = SILENCE_MS_MAX } = this.#options;
    const backoff = new Backoff();
    const attempts: Attempts = { signal, backoff, onState, foreignMsMax };
    while (!this.#isOver()) {
      const cut = new AbortController();
      const release = onAbort(signal, () => cut.abort(signal.reason));
      let openMs: number | undefined;
      let retryMs: number | undefined;
      let failure: unknown;
      this.#held = [];
      try {
        // With `no-store` browsers do not let a request wait for another one of the same URL.
        const init: RequestInit = { headers: { Accept: 'text/event-stream' }, cache: 'no-store', signal: cut.signal };
        const response = await unlessSilent(this.#origin.request(this.#address(), init, EVENTS), silenceMsMax, cut);
        openMs = performance.now();
        if (!response.body || response.status === 204) {
          if (await this.#endRest(response.headers)) return;
          throw foreignResponse('streams that have not ended get 204');
        }
        this.#isBinary = response.headers.get('Stream-SSE-Data-Encoding') === 'base64';
        onState?.('live');
        for await (const event of eventsOf(response.body, silenceMsMax, cut)) {
          if (event.retryMs !== undefined) ({ retryMs } = event);
          for (const record of this.#url ? this.#eventOfOne(event) : this.#eventOfSeveral(event)) {
            backoff.reset();
            if (signal.aborted) return;
            yield record;
          }
          // Encke is there: another server that answers in its place is there for a while only.
          if (this.position !== undefined) attempts.foreignMsMax = Infinity;
          if (signal.aborted || this.#isOver()) return;
        }
      } catch (error) {
        const isAnswer = error instanceof EnckeError;
        if (signal.aborted || !(isAnswer || error instanceof Cut)) throw error;
        // All streams that the position is of were deleted and created again.
        if (isAnswer && error.code === 'before_start' && this.position !== undefined && !this.#url) return this.#endAll();
        failure = error;
      } finally {
        release();
        cut.abort();
      }
      if (openMs !== undefined && performance.now() - openMs > STEADY_MS) backoff.reset();
      await recover(failure, attempts, retryMs);
    }
  }

  #address(): URL {
    const { streams = this.#names, from, last, times } = this.#options;
    if (this.#url) {
      const own = new URL(this.#url);
      const { searchParams } = own;
      const leavesStart = !searchParams.has('offset') && !searchParams.has('last');
      if (!searchParams.has('live')) searchParams.set('live', 'sse');
      if (this.position !== undefined) searchParams.set('lastEventId', this.position);
      if (leavesStart) {
        if (this.position === undefined && last !== undefined) searchParams.set('last', String(last));
        else searchParams.set('offset', this.position ?? from ?? 'now');
      }
      return own;
    }
    const query = streams.map((entry) => {
      const start = typeof entry === 'string' ? (last === undefined ? (from ?? 'now') : undefined) : entry.from;
      return ['stream', start === undefined ? nameOf(entry) : `${nameOf(entry)}@${start}`];
    });
    if (last !== undefined) query.push(['last', String(last)]);
    if (times) query.push(['times', 'true']);
    if (this.position !== undefined) query.push(['lastEventId', this.position]);
    return this.#origin.path(`/v1/events?${queryOf(query)}`);
  }

  /** An event of docs/events.md. Those of other names are for later clients. */
  *#eventOfSeveral({ id, name, data }: StreamEvent): Generator<StreamRecord<Message>, void> {
    const isKnown = name === undefined || ['end', 'stop', 'gap', 'disconnect'].includes(name);
    const value = data === undefined || !isKnown ? undefined : objectOf(data, name === 'disconnect' ? 'why' : 'stream');
    if (id !== undefined) this.position = id;
    if (value === undefined) return;
    if (name === undefined) yield { ...value, id };
    else if (name === 'end') this.#end(value);
    else if (name === 'stop') this.#options.onStop?.(value.stream);
    else if (name === 'gap') this.#options.onGap?.(value.stream);
    else this.#disconnect(value);
  }

  /** Records that came without an id: the next control event has their position. */
  #held: StreamRecord<Message>[] = [];
  /** The stream of a URL has bytes. */
  #isBinary = false;

  /** An event of one stream (docs/reading.md, Event streams). */
  *#eventOfOne({ id, name, data }: StreamEvent): Generator<StreamRecord<Message>, void> {
    if (data === undefined) return;
    const stream = String(this.#options.url);
    if (name === 'data' || name === 'base64') {
      const content = name === 'base64' || this.#isBinary ? { base64: data } : this.#options.json === false ? { text: data } : { messages: this.#messagesOf(data) };
      const record: StreamRecord<Message> = { stream, nextOffset: id ?? '', id, ...content };
      if (id === undefined) return void this.#held.push(record);
      this.position = id;
      yield record;
    } else if (name === 'control') {
      const { streamNextOffset, streamClosed, endReason, stopRequested, disconnect } = objectOf(data, 'streamNextOffset');
      this.position = streamNextOffset;
      for (const record of this.#held.splice(0)) yield { ...record, nextOffset: streamNextOffset };
      if (stopRequested && !this.#stopRequested) {
        this.#stopRequested = true;
        this.#options.onStop?.(stream);
      }
      if (streamClosed) this.#end({ stream, why: 'closed', endReason });
      if (disconnect) this.#disconnect(disconnect);
    }
  }

  #messagesOf(data: string): Message[] {
    try {
      return JSON.parse(data);
    } catch {
      throw new EnckeError(0, 'not_json', `a record of ${this.#options.url} is not JSON: a stream of text needs \`json: false\``);
    }
  }

  #disconnect({ why, resumable }: { why: string; resumable: boolean }): void {
    if (!resumable) throw new EnckeError(410, 'no_longer_kept', why);
  }

  #end(end: End): void {
    // A stream of a list has one end. After a cut the server may say it again.
    if (!this.ends.has(end.stream) || this.#names.some(isPattern)) this.noteEnd(end);
  }

  /** Whether all streams have ended. A pattern never ends. */
  #isOver(): boolean {
    if (!this.#names.length) return this.ends.size > 0;
    return this.#names.every((name) => this.ends.has(name));
  }

  /** All streams that the position is of were deleted, and others have their names. */
  #endAll(): void {
    for (const stream of this.#unended()) this.#end({ stream, why: 'deleted' });
  }

  /**
   * The server says that the streams have ended while the connection was away, and not how each did. Returns whether they have: a server
   * answers so only to a request with a position, and a portal may answer so to any.
   */
  async #endRest(headers: Headers): Promise<boolean> {
    if (this.#url) {
      // The position of this client is never that of an end: only another server of the protocol answers so.
      if (headers.get('Stream-Closed') === 'true') this.#end(closedEnd(String(this.#options.url), headers));
      return this.#isOver();
    }
    if (this.position === undefined || this.#names.some(isPattern)) return false;
    for (const stream of this.#unended()) {
      const end = await this.#lookUpEnd(stream);
      if (end) this.#end(end);
    }
    return this.#unended().length === 0;
  }

  #unended(): string[] {
    return this.#names.filter((name) => !this.ends.has(name));
  }

  /** How a stream has ended; none of one that is open. */
  async #lookUpEnd(stream: string): Promise<End | undefined> {
    try {
      // A balancer without a server is waited for.
      const attempts: Attempts = { signal: this.#closing.signal, expected: HEAD, foreignMsMax: Infinity };
      const { headers } = await this.#origin.persist(this.#origin.stream(stream), { method: 'HEAD' }, attempts);
      return headers.get('Stream-Closed') === 'true' ? closedEnd(stream, headers) : undefined;
    } catch (error) {
      if (error instanceof EnckeError && [404, 410].includes(error.status)) return { stream, why: 'deleted' };
      throw error;
    }
  }
}

function closedEnd(stream: string, headers: Headers): End {
  return { stream, why: 'closed', endReason: (headers.get('Encke-End-Reason') as EndReason | null) ?? undefined };
}

const foreignResponse = (why: string): EnckeError => new EnckeError(200, NOT_ENCKE, `the events are not those of Encke: ${why}`);

/** The object that an event has as JSON, with a member that it always has. */
function objectOf(data: string, member: string): any {
  let value;
  try {
    value = JSON.parse(data);
  } catch {
    // An error like any other value.
  }
  if (typeof value?.[member] !== 'string') throw foreignResponse(`no object of JSON with ${member}: ${data.slice(0, 100)}`);
  return value;
}
