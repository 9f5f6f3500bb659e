import { resendMs } from './backoff.js';
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

/** The most characters of messages that wait for the consumer, unless a single message has more. */
export const WAITING_CHARS_MAX = 4 * 2 ** 20;
/** Awaited instead of the response to `subscribe` while the channel has no subscription of the name. */
const NO_RESPONSE = -1;

/** A message of the server, with its length in characters. */
interface Waiting {
  message: any;
  chars: number;
}

/**
 * A subscription of a channel: `onRecord` is called for each record, or iterate over it. A page cannot slow down a WebSocket. So a subscription whose
 * consumer is slower than its streams ends at the server when `WAITING_CHARS_MAX` is reached, and begins again at its position when nothing waits.
 */
export class ChannelSubscription<Message = any> extends Following<Message> {
  /** The stream, the pattern, or the list joined by commas. */
  readonly name: string;
  /** Where the subscription began: known when the server has accepted it. Rejects if it ends before. */
  readonly begun: Promise<string>;

  readonly #options: ChannelSubscribeOptions<Message>;
  readonly #channel: ChannelAccess;
  readonly #names: string[];
  #began!: { resolve: (position: string) => void; reject: (error: unknown) => void };
  /** The message `subscribe` whose response is awaited. Messages before it belong to an earlier subscription of the name. */
  #awaited?: number = NO_RESPONSE;
  /** Begins again when no message waits. */
  #isPaused = false;
  #hasBegun = false;
  #isOver = false;
  #stopRequested = false;
  #waitingChars = 0;
  #retry?: ReturnType<typeof setTimeout>;
  readonly #inbox = new Inbox<Waiting, StreamRecord<Message>>({
    open: (waiting) => this.#open(waiting),
    onEmpty: () => this.#isPaused && this.begin(),
    onLeave: () => this.close(),
    onError: (error) => this.#leave(error),
  });

  constructor(options: ChannelSubscribeOptions<Message>, channel: ChannelAccess) {
    super(options);
    const { stream, streams, after, onRecord } = options;
    if ((stream === undefined) === !streams?.length) throw new TypeError('name `stream` or `streams`');
    this.#names = streams?.map(nameOf) ?? [stream!];
    this.name = this.#names.join(',');
    this.position = after;
    this.#options = options;
    this.#channel = channel;
    this.begun = new Promise((resolve, reject) => (this.#began = { resolve, reject }));
    this.begun.catch(() => {}); // `closed` has it.
    if (onRecord) void this.#inbox.deliver(onRecord);
  }

  [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void> {
    return this.iterate(this.#inbox.entries());
  }

  close(): void {
    this.#leave();
  }

  /** The connection is open: begins, or continues behind the last record. If messages wait, the subscription is paused until they are handled. */
  begin(): void {
    clearTimeout(this.#retry);
    this.#isPaused = !this.#inbox.isEmpty;
    this.#awaited = NO_RESPONSE;
    if (this.#isPaused) return;
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
    clearTimeout(this.#retry);
    this.#channel.remove(this);
    this.settle(error);
    this.#began.reject(error ?? new EnckeError(0, 'subscription_closed', `the subscription to ${this.name} was closed before it began`));
    this.#inbox.end(error);
  }

  /** Takes a message that names this subscription, and has a length in characters. */
  receive(message: any, chars: number): void {
    const { type, id } = message;
    if (this.#awaited !== undefined) {
      if (this.#awaited === NO_RESPONSE) return;
      if (type === 'error' && (id === undefined || id === this.#awaited)) return this.#refused(message);
      if (type !== 'subscribed' || id !== this.#awaited) return;
      this.#awaited = undefined;
      this.#hasBegun = true;
      this.#move(message);
      this.#began.resolve(this.position!);
      for (const { stream, reason } of message.ended ?? []) this.#push({ type: 'ended', stream, reason }, 0);
    } else if (type !== 'error' || id === undefined) {
      this.#push(message, chars);
      // The end comes behind the record.
      if (message.ended && this.#awaited === undefined) this.#push({ ...message, type: 'ended', reason: message.ended }, 0);
    }
  }

  #push(message: any, chars: number): void {
    if (this.#waitingChars + chars > WAITING_CHARS_MAX && !this.#inbox.isEmpty) {
      this.#isPaused = true;
      this.#awaited = NO_RESPONSE;
      this.#unsubscribe();
      return;
    }
    this.#waitingChars += chars;
    this.#inbox.push({ message, chars });
  }

  /** Handles a message in its turn, and returns its record. */
  #open({ message, chars }: Waiting): StreamRecord<Message> | undefined {
    const { type, stream, endReason } = message;
    this.#waitingChars -= chars;
    if (type === 'error') return this.#refused(message);
    if (type === 'disconnected') {
      if (message.resumable) return this.#later();
      throw new EnckeError(410, 'no_longer_kept', message.reason);
    }
    this.#move(message);
    if (type === 'stop' || (message.stopRequested && !this.#stopRequested)) {
      this.#stopRequested = type !== 'stop';
      this.#options.onStop?.(stream);
    }
    if (type === 'gap') this.#options.onGap?.(stream);
    if (type === 'ended') return this.#end({ stream, why: message.reason, ...(endReason && { endReason }) });
    return type === 'records' ? this.#recordOf(message) : undefined;
  }

  #move({ subscription, position, offset }: any): void {
    this.position = (subscription === undefined ? offset : position) ?? this.position;
  }

  #recordOf({ stream, offset: nextOffset, data: messages, text, base64, timeMs }: any): StreamRecord<Message> {
    const record: StreamRecord<Message> = { stream, nextOffset, id: this.position };
    return Object.assign(record, messages && { messages }, text !== undefined && { text }, base64 !== undefined && { base64 }, timeMs && { timeMs });
  }

  #end(end: End): undefined {
    this.noteEnd(end);
    if (this.#names.every((name) => this.ends.has(name))) this.finish();
  }

  #refused(message: any): undefined {
    const error = errorOf(message);
    if (error.isTransient) this.#later(error.retryAfter);
    // The stream was there: it was deleted while the connection was away, or this subscription was paused.
    else if (error.code === 'not_found' && this.#hasBegun && this.#options.stream !== undefined) this.#inbox.push({ message: { type: 'ended', stream: this.name, reason: 'deleted' }, chars: 0 });
    else this.finish(error);
  }

  /** Subscribes again after a time. If the connection is cut meanwhile, the next one does so. */
  #later(retryAfter?: number): undefined {
    this.#awaited = NO_RESPONSE;
    this.#retry = setTimeout(() => this.begin(), resendMs(retryAfter));
  }

  #leave(error?: unknown): void {
    if (this.#isOver) return;
    this.#unsubscribe();
    this.finish(error);
  }

  #unsubscribe(): void {
    const { stream, streams } = this.#options;
    this.#channel.send({ type: 'unsubscribe', stream, streams: streams && this.#names });
  }
}

/** The error of a message `error`. */
export const errorOf = ({ status = 0, code = 'error', message, endReason, retryAfter }: any): EnckeError =>
  new EnckeError(status, code, message ?? code, { endReason, retryAfter });
