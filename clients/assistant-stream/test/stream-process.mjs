// A process that writes or reads a stream. Each chunk is a line of JSON on its output, and so is the end. A writer says a chunk for each byte of its input.

import { createEnckeResumableStreamStore } from '@encke/assistant-stream';
import { createResumableStreamContext } from 'assistant-stream/resumable';

const [how, base, id, ...chunks] = process.argv.slice(2);
const context = createResumableStreamContext({ store: createEnckeResumableStreamStore({ base, producerTimeout: 2 }) });

async function* said() {
  for await (const bytes of process.stdin) {
    for (const _ of bytes) yield new TextEncoder().encode(chunks.shift());
    if (!chunks.length) return;
  }
}

const stream = how === 'write' ? await context.run(id, () => ReadableStream.from(said())) : await context.requireResume(id);
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
try {
  for await (const chunk of stream) print(new TextDecoder().decode(chunk));
  print({ end: 'done' });
} catch ({ message }) {
  print({ end: message });
}
