import type { End, EndReason, StreamRecord, SubscriberCallbacks } from './types.js';

/** What a subscription says of itself, by whatever transport it follows its streams. */
export abstract class Following<Message = any> implements AsyncIterable<StreamRecord<Message>> {
  /** Resolves when all streams have ended or `close()` was called; rejects if the server refuses the subscription. */
  readonly closed: Promise<void>;
  /** The streams that have ended, by name. */
  readonly ends = new Map<string, End>();
  /**
   * Where the subscription is: good for `after` of another one to the same streams, by the same transport. It is an offset, if one stream is
   * followed by its URL or over a channel.
   */
  position?: string;

  protected readonly callbacks: SubscriberCallbacks<Message>;
  /** Settles `closed`, the first time. */
  protected settle!: (error?: unknown) => void;

  constructor(callbacks: SubscriberCallbacks<Message>) {
    this.callbacks = callbacks;
    this.closed = new Promise((resolve, reject) => (this.settle = (error) => (error ? reject(error) : resolve())));
    if (!callbacks.onRecord) this.closed.catch(() => {}); // The iteration throws it.
  }

  /** Why the stream has ended, of a subscription to one stream. */
  get endReason(): EndReason | undefined {
    return [...this.ends.values()][0]?.endReason;
  }

  abstract [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void>;

  /** Ends the subscription. Nothing is delivered behind it. */
  abstract close(): void;

  protected noteEnd(end: End): void {
    this.ends.set(end.stream, end);
    this.callbacks.onEnd?.(end);
  }
}
