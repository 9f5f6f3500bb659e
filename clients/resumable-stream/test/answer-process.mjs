// A process that writes or reads an answer, by the context of this package or by the package `resumable-stream` over `createPubSub`. Each chunk is a line of
// JSON on its output, and so is the end. A writer says a chunk for each byte of its input.

import { createResumableStreamContext } from '@encke/resumable-stream';
import { createPubSub } from '@encke/resumable-stream/pubsub';
import generic from 'resumable-stream/generic';
import { untilAcknowledged } from './answers.mjs';

const [kind, how, base, id, ...chunks] = process.argv.slice(2);
const context = kind === 'pubsub' ? generic.createResumableStreamContext({ waitUntil: null, ...createPubSub({ base }) }) : createResumableStreamContext({ base, producerTimeout: 2 });

async function* said() {
  for await (const bytes of process.stdin) {
    for (const _ of bytes) yield chunks.shift();
    if (!chunks.length) return;
  }
}

const stream = how === 'write' ? await context.createNewResumableStream(id, () => ReadableStream.from(said())) : await untilAcknowledged(() => context.resumeExistingStream(id));
const print = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
try {
  for await (const chunk of stream) print(chunk);
  print({ end: 'done' });
} catch ({ code }) {
  print({ end: code });
}
