import { AnswerWriter, isStopped } from './answer-writer.js';
import type { ExclusiveWriter } from './claim/exclusive-writer.js';

/** An answer that is being written. */
export interface WrittenAnswer {
  /** The chunks as they come from the source. A reader that leaves does not end the answer. */
  readable: ReadableStream<string>;
  /** Resolves when the stream is closed behind all chunks. */
  written: Promise<void>;
}

/** Writes the chunks of a source to a stream. `onEnd` is called when the source has ended, with what `written` will be. */
export function writeAnswer(writer: ExclusiveWriter, source: ReadableStreamDefaultReader<string>, onEnd: (written: Promise<void>) => void): WrittenAnswer {
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
    const ended = answer.end(failure ? 'failed' : 'done');
    onEnd(ended);
    if (answer.refusal && !isStopped(answer.refusal)) failure ??= { error: answer.refusal };
    if (failure) controller.error(failure.error);
    else if (!isLeft) controller.close();
    await ended;
  }
}
