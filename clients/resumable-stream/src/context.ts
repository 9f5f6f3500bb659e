import { Client } from '@encke/client';
import { ExclusiveWriter } from './claim/exclusive-writer.js';
import { isMissing, remove, stateOf, type ServerOptions, type StreamState } from './claim/request.js';
import { readAnswer } from './read-answer.js';
import { streamName } from './stream-name.js';
import { writeAnswer } from './write-answer.js';

export interface ResumableStreamContextOptions extends ServerOptions {
  /** Keeps the process running until the promise is settled, such as `after` of Next.js. Servers that keep running need none. */
  waitUntil?: ((promise: Promise<unknown>) => void) | null;
  /** Answers are streams below this prefix; `resumable-stream` by default. */
  keyPrefix?: string;
  /** Seconds for which an answer is kept after it was last read or written; 86,400 by default. */
  ttl?: number;
  /** Seconds after which readers learn that the process which wrote an answer has ended; 30 by default. */
  producerTimeout?: number;
  /** Answers that are done are read again, and not `null`. */
  replaysDone?: boolean;
}

/** The interface of the package `resumable-stream`, and `stop`. */
export interface ResumableStreamContext {
  /** Begins an answer, or resumes it without its first `skipCharacters` if it has begun. `null` if it is done. */
  resumableStream(streamId: string, makeStream: () => ReadableStream<string>, skipCharacters?: number): Promise<ReadableStream<string> | null>;
  /** Begins an answer. One of this id that exists is deleted. The third argument has no effect, as in the package. */
  createNewResumableStream(streamId: string, makeStream: () => ReadableStream<string>, skipCharacters?: number): Promise<ReadableStream<string>>;
  /** Resumes an answer without its first `skipCharacters`. `null` if it is done, `undefined` if there is none. */
  resumeExistingStream(streamId: string, skipCharacters?: number): Promise<ReadableStream<string> | null | undefined>;
  /** `true` while an answer is being written, `DONE` when it has ended, and `null` if there is none. */
  hasExistingStream(streamId: string): Promise<null | true | 'DONE'>;
  /** Ends an answer for its readers, and has the process that writes it cancel its source. False if there is no answer that could end. */
  stop(streamId: string): Promise<boolean>;
}

const TTL_S = 24 * 60 * 60;
const PRODUCER_TIMEOUT_S = 30;

/** Keeps each answer in a stream of Encke, from which any process reads it, also after a restart of the server or of the process that wrote it. */
export function createResumableStreamContext(options: ResumableStreamContextOptions): ResumableStreamContext {
  const { waitUntil, keyPrefix = 'resumable-stream', ttl = TTL_S, producerTimeout = PRODUCER_TIMEOUT_S, replaysDone = false, ...server } = options;
  const settings = { contentType: 'application/json', ttl, producerTimeout };
  const nameOf = (streamId: string) => streamName(keyPrefix, streamId);

  function begin(writer: ExclusiveWriter, makeStream: () => ReadableStream<string>): ReadableStream<string> {
    const { readable, written } = writeAnswer(writer, readerOf(makeStream), producerTimeout * 1_000);
    written.catch(() => {}); // Readers learn it.
    waitUntil?.(written);
    return readable;
  }

  function resume(stream: string, { isClosed, endReason }: StreamState, skipCharacters = 0): ReadableStream<string> | null {
    const isBroken = endReason === 'failed' || endReason === 'abandoned';
    return isClosed && !isBroken && !replaysDone ? null : readAnswer(server, stream, skipCharacters);
  }

  return {
    async resumableStream(streamId, makeStream, skipCharacters) {
      const stream = nameOf(streamId);
      const claim = await ExclusiveWriter.claim(server, stream, settings);
      return claim instanceof ExclusiveWriter ? begin(claim, makeStream) : resume(stream, claim, skipCharacters);
    },

    async createNewResumableStream(streamId, makeStream) {
      const stream = nameOf(streamId);
      for (;;) {
        const claim = await ExclusiveWriter.claim(server, stream, settings);
        if (claim instanceof ExclusiveWriter) return begin(claim, makeStream);
        await remove(server, stream);
      }
    },

    async resumeExistingStream(streamId, skipCharacters) {
      const stream = nameOf(streamId);
      const state = await stateOf(server, stream);
      return state && resume(stream, state, skipCharacters);
    },

    async hasExistingStream(streamId) {
      const state = await stateOf(server, nameOf(streamId));
      return state ? (state.isClosed ? 'DONE' : true) : null;
    },

    async stop(streamId) {
      const stream = nameOf(streamId);
      const state = await stateOf(server, stream);
      if (!state || state.isClosed) return false;
      try {
        await new Client(server).close(stream, 'stopped');
        return true;
      } catch (error) {
        if (isMissing(error)) return false;
        throw error;
      }
    },
  };
}

/** The reader of an answer's source. If there is no source, the answer fails. */
function readerOf(makeStream: () => ReadableStream<string>): ReadableStreamDefaultReader<string> {
  try {
    return makeStream().getReader();
  } catch (error) {
    return new ReadableStream({ start: (controller) => controller.error(error) }).getReader();
  }
}
