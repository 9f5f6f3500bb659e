// The client in a page of Chromium, over HTTP/1.1 and over TLS with HTTP/2: subscriptions, a channel and appends, over kill -9 and SIGTERM.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { launchChromium } from '../../../../tests/web/browser/chromium.mjs';
import { selfSigned } from '../../../../tests/web/certificate.mjs';
import { waitFor } from '../../../../tests/web/wait.mjs';
import { numbers, Server } from '../server.mjs';

const TIMEOUT = { timeout: 120_000 };
const DIST = join(import.meta.dirname, '../../dist');

const servers = {};
let browser;

before(async () => {
  servers['http/1.1'] = await Server.start();
  servers.h2 = await Server.start((folder) => ({ tls: selfSigned(folder) }));
  browser = await launchChromium([`--ignore-certificate-errors-spki-list=${servers.h2.tls.spki}`]);
});
after(async () => {
  await browser?.close();
  for (const server of Object.values(servers)) await server.end();
});

for (const protocol of ['http/1.1', 'h2']) {
  test(`${protocol}: each record once and in order, and each append stored once, over kill -9 and SIGTERM`, TIMEOUT, async () => {
    const server = servers[protocol];
    for (const stream of ['page', 'server']) await server.create(stream);
    const page = await browser.newPage();
    await page.route('**/dist/*', (route) => route.fulfill({ path: join(DIST, new URL(route.request().url()).pathname.slice(6)), contentType: 'text/javascript' }));
    await page.goto(`${server.url}/`);
    assert.equal(await page.evaluate(() => performance.getEntriesByType('navigation')[0].nextHopProtocol), protocol);
    await page.evaluate(async () => {
      const { Client, subscribe } = await import('/dist/index.js');
      const { Channel } = await import('/dist/websocket.js');
      const channel = new Channel();
      const client = new Client();
      globalThis.got = { events: [], channel: [] };
      globalThis.ends = [];
      const into = (list) => (record) => list.push(...record.messages.map((message) => [record.stream, message]));
      const options = { streams: ['page', 'server'], from: '-1' };
      for (const subscription of [subscribe({ ...options, onRecord: into(got.events) }), channel.subscribe({ ...options, onRecord: into(got.channel) })]) {
        subscription.closed.then(() => ends.push([...subscription.ends.values()].map(({ endReason }) => endReason)));
      }
      globalThis.stored = 0;
      let next = 0;
      // In turn by a request and over the channel, each behind the one before.
      globalThis.appendSome = async (count) => {
        for (const end = next + count; next < end; next += 1) {
          await (next % 2 ? client.publish('page', next) : channel.append('page', next));
          stored += 1;
        }
      };
    });
    let next = 0;
    const appendSome = async () => {
      for (const end = next + 5; next < end; next += 1) await server.append('server', next);
    };
    const state = () => page.evaluate(() => ({ got, stored, ends }));
    const has = (count) => waitFor(`${count} records`, async () => Object.values((await state()).got).every((list) => list.length >= count));
    let appended = 0;
    for (const how of ['kill', 'stop']) {
      const appends = page.evaluate(() => appendSome(20));
      await appendSome();
      await waitFor('the page has appended some', async () => (await state()).stored > appended + 5);
      await server.restart(how, appendSome);
      await appends;
      appended += 20;
      await has(appended + next);
    }
    for (const stream of ['page', 'server']) {
      await server.close(stream);
      assert.deepEqual(await server.read(stream), numbers(stream === 'page' ? appended : next), stream);
    }
    await waitFor('both have ended', async () => (await state()).ends.length === 2);
    const { got, ends } = await state();
    for (const list of Object.values(got)) {
      for (const stream of ['page', 'server']) {
        const messages = list.filter(([name]) => name === stream).map(([, message]) => message);
        assert.deepEqual(messages, numbers(stream === 'page' ? appended : next), stream);
      }
    }
    assert.deepEqual(got.events, got.channel, 'both have one order');
    assert.deepEqual(ends, [['done', 'done'], ['done', 'done']]);
    await page.close();
  });
}
