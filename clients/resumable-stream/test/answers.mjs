// What the tests of answers have in common: an answer as a source, a process of its own, and a fetch that loses responses.

import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { endWithUs } from '../../../tests/web/child.mjs';
import { Answer, Reader } from '../../../tests/web/adapters/answer.mjs';

export { Reader };

/** An answer whose chunks come when the test lets them come. `makes` counts how often its source was made, `isCancelled` says that it is not wanted. */
export class Source {
  makes = 0;
  isCancelled = false;
  #answer;

  constructor(chunks) {
    this.#answer = new Answer(chunks);
    this.make = () => {
      this.makes += 1;
      const chunks = this.#answer[Symbol.asyncIterator]();
      return new ReadableStream({
        pull: async (controller) => {
          const { done, value } = await chunks.next();
          if (this.isCancelled) return;
          if (done) controller.close();
          else if (value instanceof Error) controller.error(value);
          else controller.enqueue(value);
        },
        cancel: () => void (this.isCancelled = true),
      });
    };
  }

  say(count) {
    this.#answer.say(count);
  }

  finish() {
    this.#answer.finish();
  }
}

/** All chunks of a stream as one text. */
export const textOf = async (stream) => (await new Reader(stream).all()).join('');

/** Calls again while `resumable-stream` gives up: it waits a second for an answer's process, and a busy machine may need longer. */
export async function untilAcknowledged(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!error.message.includes('Timeout waiting for ack')) throw error;
    }
  }
}

/** A script in a process of its own, whose lines are the chunks of an answer. */
export function inProcess(script, ...args) {
  const child = spawn(process.execPath, [fileURLToPath(script), ...args], { stdio: ['pipe', 'pipe', 'inherit'] });
  endWithUs(child);
  const lines = async function* () {
    let rest = '';
    for await (const text of child.stdout.setEncoding('utf8')) {
      const whole = (rest + text).split('\n');
      rest = whole.pop();
      for (const line of whole) yield JSON.parse(line);
    }
  };
  return { child, reader: new Reader(lines()) };
}

/** A fetch that loses the response to the first request of each kind that matches, as if the connection was cut. */
export function losing(...matchers) {
  const left = new Set(matchers);
  return async (url, init) => {
    const response = await fetch(url, init);
    for (const matcher of left) {
      if (!matcher({ method: init.method ?? 'GET', headers: new Headers(init.headers) })) continue;
      left.delete(matcher);
      throw new TypeError('the connection is cut');
    }
    return response;
  };
}
