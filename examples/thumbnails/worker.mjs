#!/usr/bin/env node
// A worker of the pool: takes an image, makes it small, sends it back. Start as many as there are cores.
//
//   node worker.mjs NAME [--pool http://127.0.0.1:4437/v1/pool/thumbnails] [--pause 0]

import { parseArgs } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import sharp from 'sharp';

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    pool: { type: 'string', default: 'http://127.0.0.1:4437/v1/pool/thumbnails' },
    /** Milliseconds to rest before each job, so that the page shows it. */
    pause: { type: 'string', default: '0' },
  },
});
const name = positionals[0] ?? `worker-${process.pid}`;
const EDGE_PIXELS_MAX = 128;

console.log(`${name} works for ${options.pool}`);
for (;;) {
  try {
    await work();
  } catch (error) {
    console.error(`${name}: ${error.cause?.message ?? error.message}; trying again`);
    await sleep(1_000);
  }
}

/** Waits for a job, and does it. */
async function work() {
  const answer = await fetch(`${options.pool}/work?worker=${encodeURIComponent(name)}&wait=30`, { method: 'POST' });
  if (answer.status === 204) return;
  if (answer.status !== 200) throw new Error(`${answer.status} ${await answer.text()}`);
  const job = `${options.pool}/job/${answer.headers.get('job-id')}`;
  const attempt = answer.headers.get('job-attempt');
  const token = answer.headers.get('job-token');
  const image = Buffer.from(await answer.arrayBuffer());
  await sleep(Number(options.pause));
  let small;
  try {
    small = await sharp(image).resize(EDGE_PIXELS_MAX, EDGE_PIXELS_MAX, { fit: 'inside' }).png().toBuffer();
  } catch (error) {
    // Another attempt may succeed; after the last one the image is a dead letter.
    await say(`${job}/refuse?attempt=${attempt}`, token, 'text/plain', error.message);
    return;
  }
  await say(`${job}/ack?attempt=${attempt}`, token, 'image/png', small);
}

async function say(url, token, type, body) {
  const headers = { 'content-type': type, 'job-token': token };
  const answer = await fetch(url, { method: 'POST', headers, body });
  // 409: it took too long, and another worker has the job.
  if (!answer.ok && answer.status !== 409) throw new Error(`${answer.status} ${await answer.text()}`);
}
