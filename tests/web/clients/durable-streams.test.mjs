// The official client of Durable Streams: each event as it comes, a cut as an error that leads on at the last offset, an
// end as an end.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { stream } from '@durable-streams/client';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
const EVENTS = 5;

const data = mkdtempSync(join(tmpdir(), 'encke-client-'));
let encke;

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress() });
});

after(async () => {
  await encke?.stop();
  rmSync(data, { recursive: true, force: true });
});

async function request(method, url, options = {}) {
  const answer = await fetch(url, { method, ...options });
  assert.ok(answer.ok, `${method} ${url}: ${answer.status}`);
}

const append = (url, number) => request('POST', url, { headers: JSON_TYPE, body: String(number) });
const close = (url) => request('POST', url, { headers: { 'Stream-Closed': 'true' } });

/** Follows a stream; `next(count)` resolves when that many numbers have come. */
async function follow(url, offset) {
  const response = await stream({ url, offset, live: 'sse', json: true, warnOnHttp: false, backoffOptions: { maxRetries: 0 } });
  const numbers = [];
  let wake = () => {};
  response.subscribeJson((batch) => {
    numbers.push(...batch.items);
    wake();
  });
  const closed = response.closed.then(() => undefined, (error) => error).finally(() => wake());
  const next = async (count) => {
    while (numbers.length < count) await new Promise((resolve) => (wake = resolve));
  };
  return { response, numbers, next, closed };
}

test('each event comes before the next one is appended, and an end ends', async () => {
  const url = `${encke.url}/v1/stream/ends`;
  await request('PUT', url, { headers: JSON_TYPE });
  const reader = await follow(url, '-1');
  let slowest = 0;
  for (let number = 0; number < EVENTS; number += 1) {
    await append(url, number);
    const appended = performance.now();
    await reader.next(number + 1);
    // The first one waits for the connection.
    if (number > 0) slowest = Math.max(slowest, performance.now() - appended);
  }
  console.log(`@durable-streams/client: ${slowest.toFixed(1)} ms after the append at most`);
  await close(url);
  assert.equal(await reader.closed, undefined);
  assert.equal(reader.response.streamClosed, true);
  assert.deepEqual(reader.numbers, [0, 1, 2, 3, 4]);
});

test('a cut is an error, and what follows the last offset comes once', async () => {
  const url = `${encke.url}/v1/stream/cut`;
  await request('PUT', url, { headers: JSON_TYPE });
  const first = await follow(url, '-1');
  for (let number = 0; number < EVENTS; number += 1) await append(url, number);
  await first.next(EVENTS);
  const { listen } = encke;
  await encke.kill();
  const error = await first.closed;
  assert.ok(error instanceof Error, 'the cut went unnoticed');
  assert.equal(first.response.streamClosed, false);
  encke = await Encke.start({ data, listen });
  await append(url, EVENTS);
  const second = await follow(url, first.response.offset);
  await second.next(1);
  assert.deepEqual([...first.numbers, ...second.numbers], [0, 1, 2, 3, 4, 5]);
  await close(url);
  assert.equal(await second.closed, undefined);
});
