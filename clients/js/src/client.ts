import { bytesOf, encodeBody } from './body.js';
import { EnckeError } from './error.js';
import type { Expected } from './expected.js';
import { type Attempts, never, Origin, type OriginOptions } from './origin.js';
import { Producers, type Producer } from './producer.js';
import { Subscription, type SubscribeOptions } from './subscription.js';
import type { Ack, EndReason } from './types.js';

export interface ClientOptions extends OriginOptions {
  /** The name of this writer (`Producer-Id`): a random one by default. */
  producerId?: string;
  /**
   * A writer that takes over from an earlier one of its name needs a higher epoch. By default the clock at its construction gives it one. With
   * an epoch of its own, a writer whose append may have been stored ends with `uncertain`, because another one may have the next epoch.
   */
  epoch?: number;
}

export interface CreateOptions {
  /** `application/json` by default. */
  contentType?: string;
  /** The first data, as in `publish`. */
  data?: unknown;
  /** Seconds after the last read or write at which the stream ends. */
  ttl?: number;
  expiresAt?: Date;
  ack?: Ack;
  /** How much of the stream is kept (docs/operations.md, Retention). */
  retention?: string;
  metadata?: Record<string, unknown>;
  /** `self`, or a subject. */
  owner?: string;
  /** Seconds for which the signed URL to read the stream is valid; without it the response has none. */
  readUrl?: number;
  /** Seconds without an append after which the server closes the stream as `abandoned`. */
  producerTimeout?: number;
  signal?: AbortSignal;
}

export interface Created {
  /** False: the stream was there, with the same settings. */
  created: boolean;
  nextOffset: string;
  readUrl?: string;
}

export interface PublishOptions {
  /** `application/json` by default. Data of other types is a string or bytes. */
  contentType?: string;
  ack?: Ack;
  /** Gives up. Whether the data is in the stream is then unknown, unless the call still waits for earlier ones: then nothing was sent. */
  signal?: AbortSignal;
}

export interface Published {
  /** The offset behind the data. */
  nextOffset: string;
  /** An earlier attempt, whose response was lost, had appended the data. */
  duplicate: boolean;
  /** A reader asks the writer to stop. */
  stopRequested: boolean;
}

const JSON_TYPE = 'application/json';
/** Each server of the protocol sends one of them, and a proxy may remove fields that it does not know. */
const CREATED: Expected = { statuses: [200, 201], fields: ['Encke-Ack', 'Stream-Next-Offset', 'Location'] };
const APPENDED: Expected = { statuses: [200, 204], fields: ['Stream-Next-Offset'] };
/** A caller who may stop and not read learns no offset. */
const CLOSED: Expected = { statuses: [200, 204], fields: ['Stream-Closed'] };
const STOP_REQUESTED: Expected = { statuses: [204], fields: ['Encke-Stop-Requested'] };

/** Creates, writes, ends and follows the streams of a server. */
export class Client {
  readonly #options: ClientOptions;
  readonly #origin: Origin;
  readonly #producers: Producers;

  constructor(options: ClientOptions = {}) {
    this.#options = options;
    this.#origin = new Origin(options);
    this.#producers = new Producers(options.producerId, options.epoch);
  }

  /** Follows one or many streams, as the function `subscribe` does. */
  subscribe<Message = any>(options: SubscribeOptions<Message>): Subscription<Message> {
    const isElsewhere = options.url !== undefined && new URL(options.url, this.#origin.base).origin !== this.#origin.base.origin;
    // The credentials of this server do not go to another one.
    return new Subscription({ ...this.#options, ...(isElsewhere && { token: undefined, credentials: undefined }), ...options });
  }

  /** Creates a stream. If it is there with the same settings, nothing happens; with others the error is `config_differs`. */
  async create(stream: string, options: CreateOptions = {}): Promise<Created> {
    const { contentType = JSON_TYPE, data, ttl, expiresAt, ack, retention, metadata, owner, readUrl, producerTimeout, signal = never() } = options;
    const headers = fields({
      'Content-Type': contentType,
      'Stream-TTL': ttl,
      'Stream-Expires-At': expiresAt?.toISOString(),
      'Encke-Ack': ack,
      'Encke-Retention': retention,
      'Encke-Metadata': metadata && asciiJson(metadata),
      'Encke-Owner': owner,
      'Encke-Read-URL': readUrl,
      'Encke-Producer-Timeout': producerTimeout,
    });
    const body = data === undefined ? undefined : encodeBody(data, contentType);
    const response = await this.#send(stream, { method: 'PUT', headers, body }, { signal, expected: CREATED });
    return {
      created: response.status === 201,
      nextOffset: response.headers.get('Stream-Next-Offset') ?? '',
      readUrl: response.headers.get('Encke-Read-URL') ?? undefined,
    };
  }

  /**
   * Appends to a stream, exactly once: the request is repeated until the server has accepted or refused it, and has a number by which the
   * server knows a repetition. Of a stream of JSON an array is one message for each of its elements. Appends to one stream keep their order.
   */
  publish(stream: string, data: unknown, options: PublishOptions = {}): Promise<Published> {
    return this.#append(stream, data, {}, options);
  }

  /** Closes a stream, with its last data or without; `reason` is for its readers. Closing twice is allowed. */
  async close(stream: string, reason?: EndReason, options: PublishOptions & { data?: unknown } = {}): Promise<void> {
    const headers = fields({ 'Stream-Closed': 'true', 'Encke-End-Reason': reason });
    const { data, contentType = JSON_TYPE, signal = never() } = options;
    if (data !== undefined && bytesOf(encodeBody(data, contentType))) return void (await this.#append(stream, data, headers, options));
    this.#origin.stream(stream); // A name that no stream can have gets no producer.
    // It needs no number, because closing twice is allowed, and has its place between the appends.
    await this.#producers.enqueue(stream, () => this.#send(stream, { method: 'POST', headers }, { signal, expected: CLOSED }), signal);
  }

  /** Asks the writer of a stream to stop; `close(stream, 'stopped')` ends the stream there and then. */
  async stop(stream: string, { signal = never() }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#send(stream, { method: 'POST', headers: { 'Encke-Stop': 'true' } }, { signal, expected: STOP_REQUESTED });
  }

  async #append(stream: string, data: unknown, further: Record<string, string>, options: PublishOptions): Promise<Published> {
    const { contentType = JSON_TYPE, ack, signal = never() } = options;
    const headers = { ...fields({ 'Content-Type': contentType, 'Encke-Ack': ack }), ...further };
    const body = encodeBody(data, contentType);
    this.#origin.stream(stream); // A name that no stream can have gets no producer.
    return this.#producers.enqueue(stream, (producer) => this.#appendNow(stream, { method: 'POST', headers, body }, producer, signal), signal);
  }

  async #appendNow(stream: string, init: RequestInit & { headers: Record<string, string> }, producer: Producer, signal: AbortSignal): Promise<Published> {
    for (;;) {
      const headers = { ...init.headers, ...producer.begin() };
      const attempts: Attempts = { signal, expected: APPENDED };
      try {
        const { status, headers: answer } = await this.#send(stream, { ...init, headers }, attempts);
        const nextOffset = answer.get('Stream-Next-Offset') ?? '';
        if (status === 204) producer.checkDuplicate(attempts.mayBeDone, answer.get('Producer-Seq'));
        producer.acknowledged();
        return { nextOffset, duplicate: status === 204, stopRequested: answer.get('Encke-Stop-Requested') === 'true' };
      } catch (error) {
        if (error instanceof EnckeError) error.mayBeDone ||= attempts.mayBeDone ?? false;
        if (!producer.noteFailure(error, attempts.mayBeDone)) throw error;
      }
    }
  }

  #send(stream: string, init: RequestInit, attempts: Attempts): Promise<Response> {
    return this.#origin.persist(this.#origin.stream(stream), init, attempts);
  }
}

/** The fields that have a value. */
function fields(values: Record<string, string | number | undefined>): Record<string, string> {
  return Object.fromEntries(Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]])));
}

/** JSON for a field of a request, which holds no other characters. */
const asciiJson = (value: unknown): string =>
  JSON.stringify(value).replace(/[^ -~]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
