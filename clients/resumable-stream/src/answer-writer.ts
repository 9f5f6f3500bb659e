import { EnckeError, type EndReason } from '@encke/client';
import type { ExclusiveWriter } from './claim/exclusive-writer.js';

/** The most characters of chunks that are appended together. A larger chunk is an append of its own. */
const APPEND_CHARS_MAX = 256 * 1024;

/** Writes the chunks of an answer to its stream, in order. Chunks that come while an append is under way go into the next one. */
export class AnswerWriter {
  /** Nothing more is written, because the server refuses it. */
  refusal?: EnckeError;

  readonly #writer: ExclusiveWriter;
  /** Called when no further chunks are wanted. */
  readonly #onStop: () => void;
  readonly #waiting: string[] = [];
  #appending?: Promise<void>;
  #isStopRequested = false;

  constructor(writer: ExclusiveWriter, onStop: () => void) {
    this.#writer = writer;
    this.#onStop = onStop;
    writer.onStop = (refusal) => this.#stop(refusal);
  }

  write(chunk: string): void {
    this.#waiting.push(chunk);
    this.#appending ??= this.#append();
  }

  /** Closes the stream behind all chunks. Rejects if the stream does not have them all, unless a reader has stopped it. */
  async end(reason: EndReason): Promise<void> {
    try {
      await this.#appending;
      if (this.refusal) throw this.refusal;
      await this.#writer.close(this.#isStopRequested ? 'stopped' : reason);
    } catch (error) {
      const { status, code } = error as EnckeError;
      if (code === 'tail_differs') throw new EnckeError(status, code, 'another answer of this id has replaced this one');
      if (!isStopped(error as EnckeError)) throw error;
    } finally {
      this.#writer.release();
    }
  }

  async #append(): Promise<void> {
    while (this.#waiting.length && !this.refusal) {
      try {
        // A chunk that is no string throws.
        const chunks = this.#waiting.splice(0, countUpTo(this.#waiting, APPEND_CHARS_MAX));
        if (await this.#writer.append(JSON.stringify(chunks))) this.#stop();
      } catch (error) {
        this.#stop(error as EnckeError);
      }
    }
    this.#appending = undefined;
  }

  #stop(refusal?: EnckeError): void {
    this.refusal ??= refusal;
    this.#isStopRequested ||= !refusal;
    this.#onStop();
  }
}

/** Whether a request was refused because a reader has ended the stream. */
const isStopped = ({ endReason }: EnckeError): boolean => endReason === 'stopped';

/** How many of the chunks have together at most `charsMax` characters; at least one. */
function countUpTo(chunks: string[], charsMax: number): number {
  let chars = 0;
  const end = chunks.findIndex((chunk) => (chars += chunk.length) > charsMax);
  return end < 0 ? chunks.length : Math.max(1, end);
}
