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
  /** In the order of their last use. */
  readonly #byStream = new Map<string, Producer>();

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

  of(stream: string): Producer {
    const producer = this.#byStream.get(stream) ?? new Producer(this.#id, this.#epoch, this.#isFixed);
    this.#byStream.delete(stream);
    this.#byStream.set(stream, producer);
    if (this.#byStream.size > PRODUCERS_MAX && !this.#isFixed) this.#forgetOne();
    return producer;
  }

  /** Resolves when the appends so far to a stream are over. */
  idle(stream: string): Promise<void> | undefined {
    return this.#byStream.get(stream)?.idle;
  }

  /** Forgets the producer that was used least recently and has nothing to do. A later one of its stream has a higher epoch, so that no number is used twice. */
  #forgetOne(): void {
    for (const [stream, { epoch, waiting }] of this.#byStream) {
      if (waiting > 0) continue;
      this.#epoch = Math.max(this.#epoch, epoch + 1);
      this.#byStream.delete(stream);
      return;
    }
  }
}

/**
 * One writer of one stream. Invariant: no two bodies are sent with the same id, epoch and number. After an append that may have been stored
 * the number cannot be used again; the next epoch fences out what may still be on its way.
 */
export class Producer {
  epoch: number;
  /** Appends that are not over. */
  waiting = 0;
  /** Resolves when all appends so far are over. */
  idle: Promise<void> = Promise.resolve();
  readonly #id: string;
  readonly #isFixed: boolean;
  #seq = 0;
  #isUncertain = false;

  constructor(id: string, epoch: number, isFixed: boolean) {
    this.#id = id;
    this.epoch = epoch;
    this.#isFixed = isFixed;
  }

  /** Runs an append when those before it are over. If the signal is aborted before that, nothing is sent. */
  enqueue<T>(append: () => Promise<T>, signal: AbortSignal): Promise<T> {
    const before = this.idle;
    this.waiting += 1;
    const result = abortable(before, signal).then(append);
    // An append that was given up in the queue does not let the next one overtake those before it.
    this.idle = result.then(noop, noop).then(() => before).then(() => void (this.waiting -= 1));
    return result;
  }

  /** The fields of the next append. */
  begin(): Record<string, string> {
    if (this.#isUncertain) {
      if (this.#isFixed) throw new EnckeError(0, 'uncertain', `the last append of the producer ${this.#id} may have been stored: continue with a higher epoch`);
      this.#restart();
    }
    return { 'Producer-Id': this.#id, 'Producer-Epoch': String(this.epoch), 'Producer-Seq': String(this.#seq) };
  }

  acknowledged(): void {
    this.#seq += 1;
  }

  /** Throws if the server knows the number from another writer of this name and epoch: then the data is not stored. */
  checkDuplicate(stream: string, mayBeDone: boolean | undefined, seq: string | null): void {
    if (mayBeDone && (seq === null || Number(seq) === this.#seq)) return;
    throw new EnckeError(0, 'producer_in_use', `another writer of ${stream} is the producer ${this.#id} in epoch ${this.epoch}: use a higher epoch, or another name`);
  }

  /** Notes the error of an append. Returns whether the same append shall be sent again, with other numbers. */
  failed(error: unknown, mayBeDone = false): boolean {
    if (mayBeDone) this.#isUncertain = true;
    if (mayBeDone || !(error instanceof EnckeError) || error.code !== 'sequence_gap' || this.#seq === 0) return false;
    // The stream was created again, or has forgotten the producer, and nothing was stored under this number.
    if (!this.#isFixed) this.#restart();
    else if (error.expectedSeq === 0) this.#seq = 0;
    else return false;
    return true;
  }

  #restart(): void {
    this.epoch += 1;
    this.#seq = 0;
    this.#isUncertain = false;
  }
}
