import { EnckeError } from './error.js';
import { Following } from './following.js';
import { Inbox } from './inbox.js';
import { isPattern, nameOf, type Named } from './stream-names.js';
import type { End, From, StreamRecord, SubscriberCallbacks } from './types.js';

export interface ChannelSubscribeOptions<Message = any> extends Omit<SubscriberCallbacks<Message>, 'onState'> {
  /** The name of a stream, or a pattern such as `chat/**`. */
  stream?: string;
  /** Names and patterns, in one order; some may begin elsewhere than the others. */
  streams?: Named[];
  /** Where to begin; `now` by default. */
  from?: From;
  /** Begin so many messages before the end, in place of `from`. */
  last?: number;
  /** Go on where an earlier subscription of the same name had its `position`. */
  after?: string;
  /** Each record has its time and the data of one append; otherwise a record of one stream may have those of several. */
  times?: boolean;
}

/** What a subscription needs of its channel. */
export interface ChannelAccess {
  /** Sends a message, if the connection is open, and returns its id. */
  send: (message: Record<string, unknown>) => number;
  remove: (subscription: ChannelSubscription) => void;
}

const RETRY_MS = 1_000;

/**
 * A subscription of a channel: `onRecord` is called for each record, or iterate over it. A WebSocket of a browser cannot be slowed down, so
 * records that an iteration has not reached wait in memory.
 */
export class ChannelSubscription<Message = any> extends Following<Message> {
  /** The stream, the pattern, or the list joined by commas. */
  readonly name: string;
  /** Where the subscription began: known when the server has accepted it. */
  readonly begun: Promise<string>;

  readonly #options: ChannelSubscribeOptions<Message>;
  readonly #channel: ChannelAccess;
  #began!: (position: string) => void;
  /** The message `subscribe` whose response is awaited. What comes before it belongs to an earlier subscription of the name. */
  #awaited?: number;
  #isOver = false;
  #stopRequested = false;
  readonly #inbox = new Inbox<StreamRecord<Message>>();

  constructor(options: ChannelSubscribeOptions<Message>, channel: ChannelAccess) {
    super(options);
    const { stream, streams, after } = options;
    if ((stream === undefined) === !streams?.length) throw new TypeError('name `stream` or `streams`');
    this.name = stream ?? streams!.map(nameOf).join(',');
    this.position = after;
    this.#options = options;
    this.#channel = channel;
    this.begun = new Promise((resolve) => (this.#began = resolve));
  }

  [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void> {
    return this.#inbox.iterate(() => this.close());
  }

  close(): void {
    if (this.#isOver) return;
    const { stream, streams } = this.#options;
    this.#channel.send({ type: 'unsubscribe', stream, streams: streams?.map(nameOf) });
    this.#inbox.clear();
    this.finish();
  }

  /** The connection is open: begins, or goes on behind the last record. */
  begin(): void {
    const { stream, streams, from, last, times } = this.#options;
    const entries = streams?.map((entry) => (typeof entry === 'string' ? entry : { stream: entry.stream, offset: entry.from }));
    const isOne = stream !== undefined && !isPattern(stream);
    const start = this.position === undefined ? { offset: last === undefined ? from : undefined, last } : isOne ? { offset: this.position } : { position: this.position };
    this.#awaited = this.#channel.send({ type: 'subscribe', stream, streams: entries, times, ...start });
  }

  /** The channel is over, or this subscription is. */
  finish(error?: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#channel.remove(this);
    this.settle(error);
    this.#inbox.end(error);
  }

  /** A message that names this subscription. */
  receive(message: any): void {
    const { type, id } = message;
    if (type === 'error') {
      if (id === undefined || id === this.#awaited) this.#refused(message);
      return;
    }
    if (this.#awaited !== undefined) {
      if (type !== 'subscribed' || id !== this.#awaited) return;
      this.#awaited = undefined;
      this.#move(message);
      this.#began(this.position!);
      for (const { stream, reason } of message.ended ?? []) this.#end({ stream, why: reason });
      return;
    }
    if (type === 'disconnected') return this.#disconnected(message);
    this.#move(message);
    if (type === 'records') this.#record(message);
    if (type === 'stop' || (message.stopRequested && !this.#stopRequested)) {
      this.#stopRequested = type !== 'stop';
      this.#options.onStop?.(message.stream);
    }
    if (type === 'gap') this.#options.onGap?.(message.stream);
    const why = type === 'ended' ? message.reason : message.ended;
    if (why) this.#end({ stream: message.stream, why, ...(message.endReason && { endReason: message.endReason }) });
  }

  #move({ subscription, position, offset }: any): void {
    this.position = (subscription === undefined ? offset : position) ?? this.position;
  }

  #record({ stream, offset: nextOffset, data: messages, text, base64, timeMs }: any): void {
    const record: StreamRecord<Message> = { stream, nextOffset, id: this.position };
    Object.assign(record, messages && { messages }, text !== undefined && { text }, base64 !== undefined && { base64 }, timeMs && { timeMs });
    if (this.#options.onRecord) return void this.#options.onRecord(record);
    this.#inbox.push(record);
  }

  #end(end: End): void {
    this.noteEnd(end);
    const { stream, streams = [stream!] } = this.#options;
    if (streams.every((entry) => this.ends.has(nameOf(entry)))) this.finish();
  }

  #disconnected({ resumable, reason }: any): void {
    if (resumable) this.#later();
    else this.finish(new EnckeError(410, 'no_longer_kept', reason));
  }

  #refused(message: any): void {
    const error = errorOf(message);
    if (error.isTransient) this.#later(error.retryAfter && error.retryAfter * 1_000);
    else this.finish(error);
  }

  /** Subscribes again. If the connection was cut meanwhile, the next one has done so. */
  #later(ms = RETRY_MS): void {
    const awaited = (this.#awaited = -1);
    setTimeout(() => !this.#isOver && this.#awaited === awaited && this.begin(), ms * (1 + Math.random() / 2));
  }
}

/** The error that a message says. */
export const errorOf = ({ status, code, message, endReason, retryAfter }: any): EnckeError =>
  new EnckeError(status, code, message, { endReason, retryAfter });
