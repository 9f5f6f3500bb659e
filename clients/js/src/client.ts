import { EnckeError } from './error.js';
import { never, Origin, type OriginOptions } from './origin.js';
import { randomId } from './random-id.js';
import { Subscription, type SubscribeOptions } from './subscription.js';
import type { Ack, EndReason } from './types.js';

export interface ClientOptions extends OriginOptions {
  /** The name of this writer (`Producer-Id`): a random one by default. */
  producerId?: string;
  /** A writer that takes over from an earlier one of its name needs a higher epoch; 0 by default. */
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
  /** Asks for a signed URL to read the stream, good for so many seconds. */
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
  /** Gives up. Whether the data is in the stream is then unknown. */
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

/** The numbers of a producer in one stream, and its last append. */
interface Producer {
  epoch: number;
  seq: number;
  last: Promise<unknown>;
}

const JSON_TYPE = 'application/json';

/** Creates, writes, ends and follows the streams of a server. */
export class Client {
  readonly #options: ClientOptions;
  readonly #origin: Origin;
  readonly #producerId: string;
  readonly #producers = new Map<string, Producer>();

  constructor(options: ClientOptions = {}) {
    this.#options = options;
    this.#origin = new Origin(options);
    this.#producerId = options.producerId ?? randomId();
  }

  /** Follows one or many streams, as the function `subscribe` does. */
  subscribe<Message = any>(options: SubscribeOptions<Message>): Subscription<Message> {
    return new Subscription({ ...this.#options, ...options });
  }

  /** Creates a stream. If it is there with the same settings, nothing happens; with others the error is `config_differs`. */
  async create(stream: string, options: CreateOptions = {}): Promise<Created> {
    const { contentType = JSON_TYPE, data, ttl, expiresAt, ack, retention, metadata, owner, readUrl, producerTimeout, signal } = options;
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
    const response = await this.#send(stream, { method: 'PUT', headers, body }, signal);
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
    if (options.data !== undefined) return void (await this.#append(stream, options.data, headers, options));
    // Behind the appends of this client.
    await this.#producers.get(stream)?.last;
    await this.#send(stream, { method: 'POST', headers }, options.signal);
  }

  /** Asks the writer of a stream to stop; `close(stream, 'stopped')` ends the stream there and then. */
  async stop(stream: string, { signal }: { signal?: AbortSignal } = {}): Promise<void> {
    await this.#send(stream, { method: 'POST', headers: { 'Encke-Stop': 'true' } }, signal);
  }

  #append(stream: string, data: unknown, further: Record<string, string>, options: PublishOptions): Promise<Published> {
    const { contentType = JSON_TYPE, ack, signal } = options;
    // What is appended is the data of now.
    const body = encodeBody(data, contentType);
    let producer = this.#producers.get(stream);
    if (!producer) this.#producers.set(stream, (producer = { epoch: this.#options.epoch ?? 0, seq: 0, last: Promise.resolve() }));
    const { last } = producer;
    const append = last.then(async () => {
      const headers = fields({
        'Content-Type': contentType,
        'Producer-Id': this.#producerId,
        'Producer-Epoch': producer.epoch,
        'Producer-Seq': producer.seq,
        'Encke-Ack': ack,
      });
      signal?.throwIfAborted(); // Nothing was sent.
      try {
        const response = await this.#send(stream, { method: 'POST', headers: { ...headers, ...further }, body }, signal);
        producer.seq += 1;
        return {
          nextOffset: response.headers.get('Stream-Next-Offset') ?? '',
          duplicate: response.status === 204,
          stopRequested: response.headers.get('Encke-Stop-Requested') === 'true',
        };
      } catch (error) {
        // A refusal has changed nothing, and the number is free. Otherwise the request may still arrive: another epoch fences it out.
        if (!(error instanceof EnckeError)) Object.assign(producer, { epoch: producer.epoch + 1, seq: 0 });
        throw error;
      }
    });
    producer.last = append.catch(() => {});
    return append;
  }

  #send(stream: string, init: RequestInit, signal: AbortSignal = never()): Promise<Response> {
    return this.#origin.persist(this.#origin.stream(stream), init, { signal });
  }
}

/** The fields that have a value. */
function fields(values: Record<string, string | number | undefined>): Record<string, string> {
  return Object.fromEntries(Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [[name, String(value)]])));
}

/** The body of a request, by the content type of its stream. */
export function encodeBody(data: unknown, contentType: string): BodyInit {
  return /^application\/json\b/i.test(contentType) ? JSON.stringify(data) : (data as BodyInit);
}

/** JSON for a field of a request, which holds no other characters. */
const asciiJson = (value: unknown): string =>
  JSON.stringify(value).replace(/[^ -~]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
