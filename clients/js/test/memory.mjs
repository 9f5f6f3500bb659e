// How much memory a client keeps of each stream that it has done with.

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

const STREAMS = 8_000;
/** Before these the engine has compiled the code, and buffers have their size. */
const ROUNDS_FIRST = 2;
const ROUNDS = 4;

setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc');

/** The bytes that are left for each stream, when `use` has been called with the names of thousands, several times. */
export async function bytesPerStream(use) {
  let before;
  for (let round = 0; round < ROUNDS_FIRST + ROUNDS; round += 1) {
    if (round === ROUNDS_FIRST) before = await heapBytes();
    await use(Array.from({ length: STREAMS }, (_, index) => `short/${round}/${index}`));
  }
  return ((await heapBytes()) - before) / (STREAMS * ROUNDS);
}

async function heapBytes() {
  for (let pass = 0; pass < 5; pass += 1) {
    await new Promise(setImmediate);
    collectGarbage();
  }
  return process.memoryUsage().heapUsed;
}
