import { EnckeError, subscribe, type EndReason } from '@encke/client';
import { isMissing, urlOf, type ServerOptions } from './claim/request.js';

/** Why a reader does not have the whole answer. */
const BREAKS: Partial<Record<EndReason, string>> = {
  failed: 'the answer has failed',
  abandoned: 'the process that wrote the answer has ended',
};

/** The chunks of a stream without its first `skipCharacters`: what is there, and what is appended until the stream ends. */
export function readAnswer(server: ServerOptions, stream: string, skipCharacters: number): ReadableStream<string> {
  const left = new AbortController();
  const chunks = chunksOf(server, stream, skipCharacters, left.signal);
  return new ReadableStream<string>({
    async pull(controller) {
      const { done, value } = await chunks.next();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    cancel: () => left.abort(),
  });
}

async function* chunksOf(server: ServerOptions, stream: string, skipCharacters: number, signal: AbortSignal): AsyncGenerator<string, void> {
  const subscription = subscribe<string>({ ...server, url: urlOf(server, stream), from: '-1', signal });
  let skip = skipCharacters;
  try {
    for await (const { messages = [] } of subscription) {
      for (const message of messages) {
        const chunk = message.slice(skip);
        skip = Math.max(0, skip - message.length);
        if (chunk) yield chunk;
      }
    }
  } catch (error) {
    throw isMissing(error) ? new EnckeError(0, 'deleted', 'the answer was deleted') : error;
  }
  const { endReason } = subscription;
  const message = endReason && BREAKS[endReason];
  if (message) throw new EnckeError(0, endReason, message);
}
