import type { End, EndReason, StreamRecord, SubscriberCallbacks } from './types.js';

/** Ends of streams that a subscription remembers: more than a list can name, while a pattern can match any number. */
export const ENDS_MAX = 1_000;

/** The state of a subscription, by whatever transport it follows its streams. */
export abstract class Following<Message = any> implements AsyncIterable<StreamRecord<Message>> {
  /** Resolves when all streams have ended or `close()` was called; rejects if the server refuses the subscription. */
  readonly closed: Promise<void>;
  /** The streams that have ended, by name; of a pattern the last 1,000. */
  readonly ends = new Map<string, End>();
  /**
   * Where the subscription is: good for `after` of another one to the same streams, by the same transport. It is an offset, if one stream is
   * followed by its URL or over a channel.
   */
  position?: string;

  protected readonly callbacks: SubscriberCallbacks<Message>;
  /** Settles `closed`, the first time. */
  protected settle!: (error?: unknown) => void;
  /** Rejects `closed` with anything that was thrown, also `undefined`. */
  protected fail!: (error: unknown) => void;
  #isIterated = false;

  constructor(callbacks: SubscriberCallbacks<Message>) {
    this.callbacks = callbacks;
    this.closed = new Promise((resolve, reject) => {
      this.fail = reject;
      this.settle = (error) => (error === undefined ? resolve() : reject(error));
    });
    if (!callbacks.onRecord) this.closed.catch(() => {}); // The iteration throws it.
  }

  /** Why the stream has ended, of a subscription to one stream. */
  get endReason(): EndReason | undefined {
    return [...this.ends.values()][0]?.endReason;
  }

  abstract [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void>;

  /** Ends the subscription. Nothing is delivered behind it. */
  abstract close(): void;

  /** The iteration over `records`. A second one, or one beside `onRecord`, would take records from the first. */
  protected iterate(records: AsyncGenerator<StreamRecord<Message>, void>): AsyncGenerator<StreamRecord<Message>, void> {
    if (this.callbacks.onRecord) throw new TypeError('the records of this subscription go to `onRecord`: iterate over one without it');
    if (this.#isIterated) throw new TypeError('this subscription is iterated already: each consumer needs a subscription of its own');
    this.#isIterated = true;
    return {
      next: () => records.next(),
      // A generator that waits for a record ends only behind it, unless the subscription is closed.
      return: () => (this.close(), records.return()),
      throw: (error) => (this.close(), records.throw(error)),
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  }

  protected noteEnd(end: End): void {
    this.ends.delete(end.stream);
    this.ends.set(end.stream, end);
    if (this.ends.size > ENDS_MAX) this.ends.delete(this.ends.keys().next().value!);
    this.callbacks.onEnd?.(end);
  }
}
