// The official client in a page goes on by itself over planned stops of the server, over HTTP/1.1 and over HTTP/2: each record once, and then
// the end.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { rolldown } from 'rolldown';
import { selfSigned } from '../certificate.mjs';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { waitFor } from '../wait.mjs';
import { launchChromium } from './chromium.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
/** How many records come between two stops. */
const RECORDS = 30;
const STOPS = 3;
/** How long a connection lasts at least. */
const CONNECTION_MS = 1200;

const folder = mkdtempSync(join(tmpdir(), 'encke-browser-client-'));
const tls = selfSigned(folder);
let browser;
let client;

before(async () => {
  browser = await launchChromium([`--ignore-certificate-errors-spki-list=${tls.spki}`]);
  const bundle = await rolldown({ input: '@durable-streams/client', cwd: import.meta.dirname, platform: 'browser' });
  const { output } = await bundle.generate({ format: 'iife', name: 'DurableStreams' });
  await bundle.close();
  client = output[0].code;
});

after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** Follows a stream in the page; what has come is in `window.seen`, and how it ended in `window.ended`. */
function follow(url) {
  window.seen = [];
  window.ended = null;
  (async () => {
    try {
      const response = await window.DurableStreams.stream({ url, offset: '-1', live: 'sse', json: true, warnOnHttp: false });
      response.subscribeJson((batch) => window.seen.push(...batch.items));
      await response.closed;
      window.ended = response.streamClosed ? 'closed' : 'ended';
    } catch (error) {
      window.ended = String(error);
    }
  })();
}

for (const over of ['HTTP/1.1', 'HTTP/2']) {
  test(`over ${over} the client goes on over ${STOPS} stops`, async () => {
    const options = { data: join(folder, over.replace('/', '')), tls: over === 'HTTP/2' ? tls : undefined };
    const listen = await fixedAddress();
    let encke = await Encke.start({ ...options, listen });
    const path = '/v1/stream/answer';
    const send = async (method, headers, body) => {
      const { status } = await encke.request(method, path, { headers, body });
      assert.ok(status >= 200 && status < 300, `${method}: ${status}`);
    };
    try {
      await send('PUT', JSON_TYPE);
      const page = await browser.newPage();
      await page.goto(`${encke.url}/`);
      await page.evaluate(`${client}; window.DurableStreams = DurableStreams;`);
      await page.evaluate(follow, encke.url + path);
      let next = 0;
      for (let stop = 0; stop <= STOPS; stop += 1) {
        for (const end = next + RECORDS; next < end; next += 1) await send('POST', JSON_TYPE, String(next));
        const seen = () => page.evaluate(() => [window.seen.length, window.ended]);
        await waitFor('all have come', async () => (await seen())[0] >= next - RECORDS / 2 || (await seen())[1] !== null);
        assert.equal((await seen())[1], null, 'the client has ended');
        if (stop === STOPS) break;
        // The client gives up after three connections of less than a second each.
        await sleep(CONNECTION_MS);
        await encke.stop();
        encke = await Encke.start({ ...options, listen });
      }
      await send('POST', { 'Stream-Closed': 'true' });
      await waitFor('the client has ended', () => page.evaluate(() => window.ended !== null));
      assert.equal(await page.evaluate(() => window.ended), 'closed');
      const expected = Array.from({ length: next }, (_, number) => number);
      assert.deepEqual(await page.evaluate(() => window.seen), expected);
      await page.close();
    } finally {
      await encke.stop();
    }
  });
}
