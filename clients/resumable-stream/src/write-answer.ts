import { EnckeError } from '@encke/client';
import { AnswerWriter } from './answer-writer.js';
import type { ExclusiveWriter } from './claim/exclusive-writer.js';

/** An answer that is being written. */
export interface WrittenAnswer {
  /** The chunks as they come from the source, and the end when the stream is closed. A reader that leaves does not end the answer. */
  readable: ReadableStream<string>;
  /** Resolves when the stream is closed behind all chunks. */
  written: Promise<void>;
}

/** Writes the chunks of a source to a stream. Its reader fails if they are not written `waitMs` after the last one: the server is away. */
export function writeAnswer(writer: ExclusiveWriter, source: ReadableStreamDefaultReader<string>, waitMs: number): WrittenAnswer {
  const answer = new AnswerWriter(writer, () => void source.cancel(answer.refusal).catch(() => {}));
  let written = Promise.resolve();
  let isLeft = false;
  const readable = new ReadableStream<string>({
    start(controller) {
      written = copy(controller);
    },
    cancel() {
      isLeft = true;
    },
  });
  return { readable, written };

  async function copy(controller: ReadableStreamDefaultController<string>): Promise<void> {
    let failure: { error: unknown } | undefined;
    try {
      for (;;) {
        const { done, value } = await source.read();
        if (done) break;
        answer.write(value);
        if (!isLeft) controller.enqueue(value);
      }
    } catch (error) {
      failure = { error };
    }
    const timer = setTimeout(() => {
      if (!isLeft) controller.error(failure?.error ?? new EnckeError(0, 'not_stored', 'the server is away, and may not have the whole answer'));
      isLeft = true;
    }, waitMs);
    try {
      await answer.end(failure ? 'failed' : 'done');
    } catch (error) {
      failure ??= { error };
      throw error;
    } finally {
      clearTimeout(timer);
      // Behind the end of the response a serverless function may stop, and a stream that is open then has no end.
      if (failure && !isLeft) controller.error(failure.error);
      else if (!isLeft) controller.close();
    }
  }
}
