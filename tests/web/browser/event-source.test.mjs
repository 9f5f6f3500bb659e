// EventSources, of Chromium and of npm, over kill -9 and restart: each event once, on open and on closed streams.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { EventSource } from 'eventsource';
import { Encke } from '../encke.mjs';
import { launchChromium } from './chromium.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
/** How long an EventSource may take to connect again: browsers wait for some seconds. */
const RESUMED_MS_MAX = 30_000;
/** An EventSource that connects again without end does so within this time. */
const QUIET_MS = 5_000;

const data = mkdtempSync(join(tmpdir(), 'encke-event-source-'));
let encke;
let browser;

before(async () => {
  encke = await Encke.start({ data });
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

async function restart() {
  const { listen } = encke;
  await encke.kill();
  encke = await Encke.start({ data, listen });
}

/** Follows a stream by the EventSource of the `eventsource` package. */
async function byPackage(url) {
  const source = new EventSource(url);
  const numbers = [];
  source.addEventListener('data', (event) => numbers.push(...JSON.parse(event.data)));
  return {
    numbers: async () => numbers,
    state: async () => source.readyState,
    end: async () => source.close(),
  };
}

/** Follows a stream by the EventSource of a page in Chromium. */
async function byChromium(url) {
  const page = await browser.newPage();
  await page.goto(new URL('/', url).href);
  await page.evaluate((url) => {
    globalThis.numbers = [];
    globalThis.source = new EventSource(url);
    globalThis.source.addEventListener('data', (event) => globalThis.numbers.push(...JSON.parse(event.data)));
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

for (const [name, follow] of [['eventsource of npm', byPackage], ['Chromium', byChromium]]) {
  test(`${name}: each event once over kill -9, and none again when the stream is closed`, async () => {
    const stream = `event-source-${follow.name}`;
    await create(stream);
    await append(stream, 1);
    const source = await follow(`${encke.url}/v1/stream/${stream}?offset=-1&live=sse`);
    const has = (count) => waitFor(`${count} events`, async () => (await source.numbers()).length >= count);
    await has(1);
    await append(stream, 2);
    await has(2);
    await restart();
    await append(stream, 3);
    await has(3);
    await append(stream, 4);
    await has(4);
    await close(stream);
    await waitFor('it connects no more', async () => (await source.state()) === EventSource.CLOSED);
    await sleep(QUIET_MS);
    assert.deepEqual(await source.numbers(), [1, 2, 3, 4]);
    await source.end();
  });

  test(`${name}: a stream that was closed before is read once`, async () => {
    const stream = `closed-${follow.name}`;
    await create(stream);
    await append(stream, 1);
    await close(stream);
    const source = await follow(`${encke.url}/v1/stream/${stream}?offset=-1&live=sse`);
    await waitFor('it connects no more', async () => (await source.state()) === EventSource.CLOSED);
    assert.deepEqual(await source.numbers(), [1]);
    await source.end();
  });
}
