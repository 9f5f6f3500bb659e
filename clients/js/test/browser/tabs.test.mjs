// Ten tabs of Chromium over HTTP/1.1: one connection at the server, each record once in each tab, whichever tab is closed.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { waitFor } from '../../../../tests/web/wait.mjs';
import { numbers, Server } from '../server.mjs';
import { startRig } from './rig.mjs';
import { guarded, token } from '../token.mjs';

const TIMEOUT = { timeout: 180_000 };
const TABS = 10;
/** Beside that of the tabs there is the one that asks for the metric. */
const CONNECTIONS = 2;

let rig;
let server;
let browser;

before(async () => {
  rig = await startRig();
  ({ server, browser } = rig);
});
after(() => rig?.end());

/** A tab that follows a stream, together with the others of its context. */
async function openTab(context, options) {
  const page = await context.newPage();
  // From this machine: a page of another network may open no WebSocket to it.
  await page.goto(rig.pageUrl('test/page.html'));
  await page.evaluate(async ({ token, ...options }) => {
    const { subscribe } = await import('/dist/shared.js');
    globalThis.messages = [];
    const onRecord = (record) => globalThis.messages.push(...record.messages);
    globalThis.subscription = subscribe({ ...options, token: token && (async () => token), onRecord });
    globalThis.subscription.closed.then(() => (globalThis.end = subscription.endReason), (error) => (globalThis.end = error.code));
  }, { base: server.url, ...options });
  return {
    page,
    messages: () => page.evaluate(() => globalThis.messages),
    end: () => page.evaluate(() => globalThis.end),
    has: (count) => waitFor(`${count} messages in the tab`, () => page.evaluate((count) => globalThis.messages.length >= count, count)),
  };
}

/** Whether the context that has the connection is a tab. */
async function isHubInTab() {
  const { held } = await navigator.locks.query();
  const hub = held.find(({ name }) => name.startsWith('encke-hub:'));
  return held.some(({ name, clientId }) => name.startsWith('encke-tab:') && clientId === hub.clientId);
}

const haveOneConnection = () => waitFor('one connection for all tabs', async () => (await server.metric('encke_connections')) === CONNECTIONS);

for (const [where, worker] of [['a SharedWorker', true], ['one of the tabs', false]]) {
  test(`the connection of ${where}: each record once in each tab, over kill -9 and tabs that are closed`, TIMEOUT, async () => {
    const stream = `tabs-${worker}`;
    await server.create(stream);
    let next = 0;
    const appendSome = async (count = 5) => {
      for (const end = next + count; next < end; next += 1) await server.append(stream, next);
    };
    await appendSome();
    const context = await browser.newContext();
    const tabs = await Promise.all(numbers(TABS - 2).map(() => openTab(context, { stream, from: '-1', worker })));
    for (const { has } of tabs) await has(next);
    // Later tabs begin elsewhere.
    const tail = await openTab(context, { stream, last: 2, worker });
    await tail.has(2);
    const live = await openTab(context, { stream, from: 'now', worker });
    await waitFor('it is live', async () => (await live.page.evaluate(async () => (await navigator.locks.query()).held.length)) > TABS);
    await haveOneConnection();
    assert.equal(await live.page.evaluate(isHubInTab), !worker);

    await appendSome();
    for (const { has } of tabs) await has(next);
    await server.restart('kill', appendSome);
    for (const { has } of tabs) await has(next);
    await haveOneConnection();

    // Among those that are closed are those that lead.
    const appends = appendSome(60);
    for (const { page } of tabs.splice(0, TABS - 4)) await page.close();
    await appends;
    await appendSome();
    for (const { has } of tabs) await has(next);
    await haveOneConnection();
    await server.close(stream, 'done');
    for (const tab of [...tabs, tail]) {
      await waitFor('the end', async () => (await tab.end()) === 'done');
    }
    for (const tab of tabs) assert.deepEqual(await tab.messages(), numbers(next));
    assert.deepEqual(await tail.messages(), numbers(next).slice(3));
    // It may have begun behind the first of them.
    const got = await live.messages();
    assert.deepEqual(got, numbers(next).slice(-got.length));
    // One that comes after the end learns all.
    const late = await openTab(context, { stream, from: '-1', worker });
    await waitFor('the end', async () => (await late.end()) === 'done');
    assert.deepEqual(await late.messages(), numbers(next));
    await context.close();
  });
}

test('the last tab leaves no connection, a missing stream is refused, and tabs have a token', TIMEOUT, async () => {
  const context = await browser.newContext();
  const missing = await openTab(context, { stream: 'missing' });
  await waitFor('the refusal', async () => (await missing.end()) === 'not_found');
  await waitFor('no connection', async () => (await server.metric('encke_connections')) === CONNECTIONS - 1);
  const secret = await Server.start((folder) => guarded(folder, ['--cors-origins', 'loopback']));
  try {
    const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${token(600)}` };
    await secret.request('PUT', '/v1/stream/a', { headers, body: '[0]' });
    const tab = await openTab(context, { base: secret.url, stream: 'a', from: '-1', token: token(600) });
    await tab.has(1);
  } finally {
    await context.close();
    await secret.end();
  }
});

test('the example: a chat in two tabs', TIMEOUT, async () => {
  const context = await browser.newContext();
  const pages = [];
  for (let tab = 0; tab < 2; tab += 1) {
    const page = await context.newPage();
    await page.goto(`${rig.pageUrl('example/chat.html')}?encke=${encodeURIComponent(server.url)}`);
    await page.locator('output', { hasText: 'live' }).waitFor();
    pages.push(page);
  }
  for (const [index, page] of pages.entries()) {
    await page.locator('input').fill(`Hello from ${index}`);
    await page.locator('button').click();
    for (const other of pages) await other.locator('li', { hasText: `Hello from ${index}` }).waitFor();
  }
  for (const page of pages) assert.equal(await page.locator('li').count(), 2);
  await context.close();
});
