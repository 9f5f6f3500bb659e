// Fifty EventSources of one page share one HTTP/2 connection over TLS, and go on where they were when the server comes back.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { selfSigned } from '../certificate.mjs';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { waitFor } from '../wait.mjs';
import { launchChromium } from './chromium.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
const STREAMS = Array.from({ length: 50 }, (_, number) => `s${number}`);
/** How many records each stream gets between two restarts. */
const RECORDS = 10;
const CLOSED = 2;

const folder = mkdtempSync(join(tmpdir(), 'encke-browser-http2-'));
const data = join(folder, 'data');
const tls = selfSigned(folder);
let encke;
let browser;

before(async () => {
  encke = await Encke.start({ data, tls, listen: await fixedAddress() });
  browser = await launchChromium([`--ignore-certificate-errors-spki-list=${tls.spki}`]);
});

after(async () => {
  await browser?.close();
  await encke?.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** Sends a request to each stream, over HTTP/1.1, so that every HTTP/2 connection is the browser's. */
async function toEach(method, options) {
  const responses = await Promise.all(STREAMS.map((stream) => encke.request(method, `/v1/stream/${stream}`, options)));
  for (const { status, body } of responses) assert.ok(status >= 200 && status < 300, `${method}: ${status} ${body}`);
}

let published = 0;
/** Appends the next numbers to each stream, one after the other. */
async function publish() {
  for (const end = published + RECORDS; published < end; published += 1) {
    await toEach('POST', { headers: JSON_TYPE, body: String(published) });
  }
}

/** A page of the server with an EventSource for each stream, and what the browser says about their connections. */
async function follow() {
  const page = await browser.newPage();
  const network = await page.context().newCDPSession(page);
  const responses = [];
  network.on('Network.responseReceived', ({ type, response }) => {
    if (type === 'EventSource') responses.push(response);
  });
  await network.send('Network.enable');
  await page.goto(`${encke.url}/`);
  await page.evaluate((streams) => {
    globalThis.sources = streams.map((stream) => {
      const source = new EventSource(`/v1/stream/${stream}?offset=-1&live=sse`);
      source.numbers = [];
      source.addEventListener('data', (event) => source.numbers.push(...JSON.parse(event.data)));
      return source;
    });
  }, STREAMS);
  return { page, responses };
}

/** Waits until every source has got what was published, and checks that it got nothing else. */
async function hasEverything(page) {
  const counts = () => page.evaluate(() => globalThis.sources.map((source) => source.numbers.length));
  await waitFor(`each source has ${published} records`, async () => (await counts()).every((count) => count >= published));
  const all = Array.from({ length: published }, (_, number) => number);
  const got = await page.evaluate(() => globalThis.sources.map((source) => source.numbers));
  for (const [index, numbers] of got.entries()) assert.deepEqual(numbers, all, STREAMS[index]);
}

/** Checks that the last response of each source came by HTTP/2, all over one connection, which the server counts as one. */
async function shareOneConnection(responses) {
  await waitFor('each source has its response', () => responses.length >= STREAMS.length);
  const last = new Map(responses.map((response) => [new URL(response.url).pathname, response]));
  assert.equal(last.size, STREAMS.length);
  assert.deepEqual(new Set([...last.values()].map((response) => response.protocol)), new Set(['h2']));
  assert.equal(new Set([...last.values()].map((response) => response.connectionId)).size, 1);
  await waitFor('the server has one connection with a stream for each source', async () => {
    const [connections, streams] = [await encke.metric('encke_http2_connections'), await encke.metric('encke_http2_streams')];
    return connections === 1 && streams === STREAMS.length;
  });
}

test('fifty EventSources share one HTTP/2 connection, and get every record once over restarts', async () => {
  await toEach('PUT', { headers: JSON_TYPE });
  const { page, responses } = await follow();
  const protocol = () => performance.getEntriesByType('navigation').map((entry) => entry.nextHopProtocol);
  assert.deepEqual(await page.evaluate(protocol), ['h2']);
  await publish();
  await hasEverything(page);
  await shareOneConnection(responses);

  for (const end of ['stop', 'kill']) {
    const { listen } = encke;
    responses.length = 0;
    await encke[end]();
    // At another address, where no EventSource comes.
    encke = await Encke.start({ data, tls });
    await publish();
    await encke.stop();
    encke = await Encke.start({ data, tls, listen });
    await publish();
    await hasEverything(page);
    await shareOneConnection(responses);
  }

  await toEach('POST', { headers: { 'Stream-Closed': 'true' } });
  const closed = (state) => globalThis.sources.every((source) => source.readyState === state);
  await waitFor('no source connects again', () => page.evaluate(closed, CLOSED));
  await hasEverything(page);
  await page.close();
});
