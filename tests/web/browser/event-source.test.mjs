// EventSources, of Chromium and of npm, over kill -9 and restart: each event once, on open and on closed streams, of one stream
// and of several.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { EventSource } from 'eventsource';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { launchChromium } from './chromium.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
/** How long an EventSource may take to connect again: browsers wait for some seconds. */
const RESUMED_MS_MAX = 30_000;

const data = mkdtempSync(join(tmpdir(), 'encke-event-source-'));
let encke;
let browser;

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress() });
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  await encke?.stop();
  rmSync(data, { recursive: true, force: true });
});

const request = async (method, stream, options = {}) => {
  const answer = await fetch(`${encke.url}/v1/stream/${stream}`, { method, ...options });
  assert.ok(answer.ok, `${method} ${stream}: ${answer.status}`);
};
const create = (stream) => request('PUT', stream, { headers: JSON_TYPE });
const append = (stream, number) => request('POST', stream, { headers: JSON_TYPE, body: String(number) });
const close = (stream) => request('POST', stream, { headers: { 'Stream-Closed': 'true' } });

/** Kills the server and starts it again. What happens `meanwhile` reaches it at another address, where no client comes. */
async function restart(meanwhile) {
  const { listen } = encke;
  await encke.kill();
  if (meanwhile) {
    encke = await Encke.start({ data });
    await meanwhile();
    await encke.kill();
  }
  encke = await Encke.start({ data, listen });
}

/** Follows streams by the EventSource of the `eventsource` package. Events of one stream are called `data`. */
async function byPackage(url) {
  const source = new EventSource(url);
  const numbers = [];
  source.addEventListener('data', (event) => numbers.push(...JSON.parse(event.data)));
  source.onmessage = (event) => numbers.push(...JSON.parse(event.data).messages);
  return {
    numbers: async () => numbers,
    state: async () => source.readyState,
    end: async () => source.close(),
  };
}

/** Follows streams by the EventSource of a page in Chromium. */
async function byChromium(url) {
  const page = await browser.newPage();
  await page.goto(new URL('/', url).href);
  await page.evaluate((url) => {
    globalThis.numbers = [];
    globalThis.source = new EventSource(url);
    globalThis.source.addEventListener('data', (event) => globalThis.numbers.push(...JSON.parse(event.data)));
    globalThis.source.onmessage = (event) => globalThis.numbers.push(...JSON.parse(event.data).messages);
  }, url);
  return {
    numbers: () => page.evaluate(() => globalThis.numbers),
    state: () => page.evaluate(() => globalThis.source.readyState),
    end: () => page.close(),
  };
}

async function waitFor(what, isSo) {
  const deadline = performance.now() + RESUMED_MS_MAX;
  while (!(await isSo())) {
    assert.ok(performance.now() < deadline, `still not so: ${what}`);
    await sleep(20);
  }
}

/** A stream with one event, and a source that has got it. */
async function followed(follow, stream) {
  await create(stream);
  await append(stream, 1);
  const source = await follow(`${encke.url}/v1/stream/${stream}?offset=-1&live=sse`);
  await has(source, 1);
  return source;
}

const has = (source, count) => waitFor(`${count} events`, async () => (await source.numbers()).length >= count);

/** Waits until a source connects no more. It has these events then. */
async function endsWith(source, numbers) {
  await waitFor('it connects no more', async () => (await source.state()) === EventSource.CLOSED);
  assert.deepEqual(await source.numbers(), numbers);
  await source.end();
}

for (const [name, follow] of [['eventsource of npm', byPackage], ['Chromium', byChromium]]) {
  test(`${name}: each event once over kill -9, and none again when the stream is closed`, async () => {
    const stream = `open-${follow.name}`;
    const source = await followed(follow, stream);
    await append(stream, 2);
    await has(source, 2);
    await restart();
    await append(stream, 3);
    await has(source, 3);
    await append(stream, 4);
    await has(source, 4);
    await close(stream);
    await endsWith(source, [1, 2, 3, 4]);
  });

  test(`${name}: a stream that was closed before is read once`, async () => {
    const stream = `closed-${follow.name}`;
    await create(stream);
    await append(stream, 1);
    await close(stream);
    const source = await follow(`${encke.url}/v1/stream/${stream}?offset=-1&live=sse`);
    await endsWith(source, [1]);
  });

  test(`${name}: a stream that is closed before kill -9 is read once`, async () => {
    const stream = `closed-before-kill-${follow.name}`;
    const source = await followed(follow, stream);
    await append(stream, 2);
    await close(stream);
    // By now it may or may not know that the stream is closed.
    await restart();
    await endsWith(source, [1, 2]);
  });

  test(`${name}: a stream that is closed while the client is away is read to its end once`, async () => {
    const stream = `closed-while-away-${follow.name}`;
    const source = await followed(follow, stream);
    await append(stream, 2);
    await restart(async () => {
      await append(stream, 3);
      await close(stream);
    });
    await endsWith(source, [1, 2, 3]);
  });

  test(`${name}: each event of several streams once over kill -9`, async () => {
    const [first, second] = ['first', 'second'].map((which) => `${which}-${follow.name}`);
    await create(first);
    await create(second);
    await append(first, 1);
    await append(second, 2);
    const source = await follow(`${encke.url}/v1/events?stream=${first}@-1&stream=${second}@-1`);
    await has(source, 2);
    await append(first, 3);
    await restart(() => append(second, 4));
    await append(first, 5);
    await has(source, 5);
    await close(first);
    await close(second);
    await endsWith(source, [1, 2, 3, 4, 5]);
  });
}
