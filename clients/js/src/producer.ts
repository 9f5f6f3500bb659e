import { abortable } from './abortable.js';
import { EnckeError } from './error.js';
import { randomId } from './random-id.js';

/** Streams whose numbers a client remembers. */
export const PRODUCERS_MAX = 1_000;

const noop = (): void => {};

/** The producers of a client, by stream. */
export class Producers {
  readonly #id: string;
  /** The application has chosen the epoch, so it stays as it is. */
  readonly #isFixed: boolean;
  /** The epoch of the next producer. */
  #epoch: number;
  readonly #byStream = new Map<string, Producer>();
  /** Those of them without an append, in the order of their last use. */
  readonly #idle = new Map<string, Producer>();

  /**
   * A name without an epoch gets one by the clock: if a process started again with the epoch of an earlier one, the server would take its first
   * appends for repetitions and acknowledge them without storing them.
   */
  constructor(id?: string, epoch?: number) {
    this.#id = id ?? randomId();
    this.#isFixed = epoch !== undefined;
    this.#epoch = epoch ?? (id === undefined ? 0 : Math.floor((Date.now() + Math.random()) * 1_000));
  }

  get size(): number {
    return this.#byStream.size;
  }

  /** Runs an operation of the writer of a stream when those before it are over. If the signal is aborted before that, nothing is sent. */
  enqueue<T>(stream: string, operation: (producer: Producer) => Promise<T>, signal: AbortSignal): Promise<T> {
    const producer = this.#byStream.get(stream) ?? new Producer(stream, this.#id, this.#epoch, this.#isFixed);
    this.#byStream.set(stream, producer);
    this.#idle.delete(stream);
    const result = producer.enqueue(() => operation(producer), signal);
    void producer.settled.then(() => {
      if (!producer.waiting) this.#idle.set(stream, producer);
      this.#forget();
    });
    this.#forget();
    return result;
  }

  /**
   * Forgets the producers that were used least recently and have nothing to do. A later one of the same stream has a higher epoch, so that no
   * number is used twice. Those of a fixed epoch stay.
   */
  #forget(): void {
    if (this.#isFixed) return;
    for (const [stream, { epoch }] of this.#idle) {
      if (this.size <= PRODUCERS_MAX) return;
      this.#epoch = Math.max(this.#epoch, epoch + 1);
      this.#byStream.delete(stream);
      this.#idle.delete(stream);
    }
  }
}

/**
 * One writer of one stream. Invariant: a number of an epoch whose append may be stored is sent with no other data. The next append begins the
 * next epoch, and the server refuses requests of the earlier epoch that are still on their way.
 */
export class Producer {
  epoch: number;
  /** Appends in the queue, the one that is sent included. */
  waiting = 0;
  /** Resolves when all appends so far have succeeded or failed. */
  settled: Promise<void> = Promise.resolve();
  readonly #stream: string;
  readonly #id: string;
  /** The application has chosen the epoch. */
  readonly #isFixed: boolean;
  #seq = 0;
  /** The code of the error after which the number cannot be sent again. */
  #spentBy?: 'uncertain' | 'producer_in_use';

  constructor(stream: string, id: string, epoch: number, isFixed: boolean) {
    this.#stream = stream;
    this.#id = id;
    this.epoch = epoch;
    this.#isFixed = isFixed;
  }

  /** Runs an append when those before it are over, unless the signal is aborted before that. */
  enqueue<T>(append: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const before = this.settled;
    this.waiting += 1;
    const result = abortable(before, signal).then(append);
    // An append that was given up in the queue does not let the next one overtake those before it.
    this.settled = result.then(noop, noop).then(() => before).then(() => void (this.waiting -= 1));
    return result;
  }

  /** The fields of the next append. */
  begin(): Record<string, string> {
    if (this.#spentBy) {
      if (this.#isFixed) throw this.#error(this.#spentBy);
      this.#restart();
    }
    return { 'Producer-Id': this.#id, 'Producer-Epoch': String(this.epoch), 'Producer-Seq': String(this.#seq) };
  }

  acknowledged(): void {
    this.#seq += 1;
  }

  /**
   * Takes a response which says that the number is stored already, and throws if another writer has stored it. A browser or a proxy that sends
   * a request twice causes the same response, also to a first attempt. Two writers can have one id and epoch only if the application has chosen
   * the epoch; the one whose number 0 was stored then has all numbers behind it.
   */
  checkDuplicate(mayBeDone: boolean | undefined, seq: string | null): void {
    const isOwnNumber = seq === null || Number(seq) === this.#seq;
    if (isOwnNumber && (mayBeDone || !this.#isFixed || this.#seq > 0)) return;
    this.#spentBy = 'producer_in_use';
    const error = this.#error(this.#spentBy);
    error.mayBeDone = isOwnNumber;
    throw error;
  }

  /** Notes the error of an append. Returns whether the append shall be sent again, with the fields of another `begin`. */
  noteFailure(error: unknown, mayBeDone = false): boolean {
    if (mayBeDone) this.#spentBy ??= 'uncertain';
    if (mayBeDone || !(error instanceof EnckeError) || this.#seq === 0) return false;
    // The server does not know the numbers before this one: the stream was created again, or has forgotten the producer. Nothing was stored.
    const isUnknown = error.code === 'epoch_start' || (error.code === 'sequence_gap' && (!this.#isFixed || error.expectedSeq === 0));
    if (!isUnknown) return false;
    if (this.#isFixed) this.#seq = 0;
    else this.#restart();
    return true;
  }

  #error(code: 'uncertain' | 'producer_in_use'): EnckeError {
    const why =
      code === 'uncertain'
        ? `the last append of the producer ${this.#id} to ${this.#stream} may have been stored: continue with a higher epoch`
        : `another writer of ${this.#stream} is the producer ${this.#id} in epoch ${this.epoch}: use a higher epoch, or another name`;
    return new EnckeError(0, code, why);
  }

  #restart(): void {
    this.epoch += 1;
    this.#seq = 0;
    this.#spentBy = undefined;
  }
}
