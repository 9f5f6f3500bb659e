// A tab of a group in Chromium: its one consumer, its bounded queue, and the hub that takes over when the worker ends.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { waitFor } from '../../../../tests/web/wait.mjs';
import { numbers, Server } from '../server.mjs';
import { startRig } from './rig.mjs';

const TIMEOUT = { timeout: 180_000 };
const BASE = 'http://127.0.0.1:1/';

let rig;
let server;
let browser;

before(async () => {
  rig = await startRig();
  ({ server, browser } = rig);
});
after(() => rig?.end());

async function openPage(context) {
  const page = await context.newPage();
  await page.goto(rig.pageUrl('test/page.html'));
  return page;
}

/** A page that is the hub of a group: it notes the messages of tabs, and the test writes its own. */
async function openHub(context, group) {
  const page = await openPage(context);
  await page.evaluate(async (group) => {
    globalThis.heard = [];
    await new Promise((resolve) => {
      void navigator.locks.request(`encke-hub:${group}`, () => {
        resolve();
        return new Promise(() => {});
      });
    });
    globalThis.channel = new BroadcastChannel(`encke:${group}`);
    channel.onmessage = ({ data }) => heard.push(data);
  }, group);
  const post = (...messages) => page.evaluate((messages) => messages.forEach((message) => channel.postMessage(message)), messages);
  /** The messages of a type, when there are at least `count`. */
  const heard = async (type, count) => {
    const some = () => page.evaluate((type) => heard.filter((message) => message.type === type), type);
    await waitFor(`${count} messages ${type}`, async () => (await some()).length >= count);
    return some();
  };
  return { post, heard };
}

/** A tab whose calls of `onRecord` end when the test ends them. */
async function openTab(context, options) {
  const page = await openPage(context);
  await page.evaluate(async (options) => {
    const { subscribe } = await import('/dist/shared.js');
    globalThis.calls = [];
    globalThis.outcomes = [];
    const onRecord = ({ messages: [number] }) => new Promise((resolve, reject) => {
      calls.push(number);
      outcomes.push({ resolve, reject });
      if (globalThis.isFree) resolve();
    });
    globalThis.subscription = subscribe({ worker: false, from: '-1', onRecord, ...options });
    subscription.closed.then(() => (globalThis.end = 'closed'), (error) => (globalThis.end = error.message));
  }, options);
  return {
    page,
    calls: () => page.evaluate(() => calls),
    called: (count) => waitFor(`${count} calls`, () => page.evaluate((count) => calls.length >= count, count)),
    settle: (how) => page.evaluate((how) => outcomes.shift()[how](new Error('a mistake of the page')), how),
  };
}

/** An offset of ten digits, so that they sort as numbers do. */
const offset = (number) => String(number).padStart(10, '0');
const recordOf = (number) => ({ type: 'record', record: { stream: 'a', nextOffset: offset(number), messages: [number] } });

test('a tab handles one record at a time, and takes none before the hub has admitted it', TIMEOUT, async () => {
  const context = await browser.newContext();
  const hub = await openHub(context, ` ${BASE}`);
  const tab = await openTab(context, { base: BASE, stream: 'a' });
  const [{ tab: name, id }] = await hub.heard('want', 1);
  const begin = (number) => ({ type: 'begin', to: { tab: name, id }, offset: offset(number) });
  await hub.post(begin(0), recordOf(1), recordOf(2));
  await tab.called(1);
  // Another hub, which sends a later record to another tab first.
  await hub.post({ type: 'hello' }, recordOf(9));
  const [, again] = await hub.heard('want', 2);
  assert.equal(again.offset, offset(2));
  await hub.post(begin(2), recordOf(3), { type: 'end', end: { stream: 'a', why: 'closed', endReason: 'done' } });
  assert.deepEqual(await tab.calls(), [1]);
  for (const count of [2, 3]) {
    await tab.settle('resolve');
    await tab.called(count);
  }
  assert.deepEqual(await tab.calls(), [1, 2, 3]);
  assert.equal(await tab.page.evaluate(() => globalThis.end), undefined);
  await tab.settle('resolve');
  await waitFor('the end', async () => (await tab.page.evaluate(() => globalThis.end)) === 'closed');
  assert.equal(await tab.page.evaluate(() => subscription.endReason), 'done');
  await context.close();
});

test('an error of a handler ends the subscription of the tab with it', TIMEOUT, async () => {
  const context = await browser.newContext();
  const hub = await openHub(context, ` ${BASE}`);
  const tab = await openTab(context, { base: BASE, stream: 'a' });
  const [{ tab: name, id }] = await hub.heard('want', 1);
  await hub.post({ type: 'begin', to: { tab: name, id }, offset: offset(0) }, recordOf(1), recordOf(2));
  await tab.called(1);
  await tab.settle('reject');
  await waitFor('the end', async () => (await tab.page.evaluate(() => globalThis.end)) === 'a mistake of the page');
  await hub.heard('leave', 1);
  assert.deepEqual(await tab.calls(), [1]);
  await context.close();
});

test('a slow consumer of a tab bounds what waits, and misses nothing', TIMEOUT, async () => {
  const context = await browser.newContext();
  const hub = await openHub(context, ` ${BASE}`);
  const tab = await openTab(context, { base: BASE, stream: 'a' });
  const bound = await tab.page.evaluate(async () => (await import('/dist/tab.js')).WAITING_RECORDS_MAX);
  const [{ tab: name, id }] = await hub.heard('want', 1);
  const begin = (number) => ({ type: 'begin', to: { tab: name, id }, offset: offset(number) });
  // The first one is at the handler, and the last one has no place.
  const records = numbers(bound + 2).map((index) => recordOf(index + 1));
  await hub.post(begin(0), records[0]);
  await tab.called(1);
  await hub.post(...records.slice(1));
  await hub.heard('leave', 1);
  assert.equal((await hub.heard('want', 1)).length, 1);
  // Another hub learns of it when no record waits.
  await hub.post({ type: 'hello' });
  await tab.page.evaluate(() => {
    globalThis.isFree = true;
    outcomes.shift().resolve();
  });
  const [, again] = await hub.heard('want', 2);
  assert.equal(again.offset, offset(bound + 1));
  await hub.post(begin(bound + 1), records.at(-1));
  await tab.called(bound + 2);
  assert.deepEqual(await tab.calls(), numbers(bound + 2).map((index) => index + 1));
  assert.equal((await hub.heard('want', 2)).length, 2);
  await context.close();
});

test('what waits in a tab is bounded by its characters, too', TIMEOUT, async () => {
  const context = await browser.newContext();
  const hub = await openHub(context, ` ${BASE}`);
  const tab = await openTab(context, { base: BASE, stream: 'a' });
  const bound = await tab.page.evaluate(async () => (await import('/dist/tab.js')).WAITING_CHARS_MAX);
  const [{ tab: name, id }] = await hub.heard('want', 1);
  const begin = (number) => ({ type: 'begin', to: { tab: name, id }, offset: offset(number) });
  await hub.post(begin(0), recordOf(1));
  await tab.called(1);
  // One that is larger than the bound waits alone.
  await hub.post({ ...recordOf(2), chars: bound + 1 }, { ...recordOf(3), chars: 1 });
  await hub.heard('leave', 1);
  for (const count of [1, 2]) {
    await tab.settle('resolve');
    if (count === 1) await tab.called(2);
  }
  const [, again] = await hub.heard('want', 2);
  assert.equal(again.offset, offset(2));
  await hub.post(begin(2), { ...recordOf(3), chars: 1 });
  await tab.called(3);
  assert.deepEqual(await tab.calls(), [1, 2, 3]);
  await context.close();
});

test('a slow tab misses nothing when the tab with the connection is closed', TIMEOUT, async () => {
  await server.create('slow-tab');
  const context = await browser.newContext();
  const options = { base: server.url, stream: 'slow-tab' };
  const first = await openTab(context, options);
  await waitFor('it leads', () => first.page.evaluate(async () => (await navigator.locks.query()).held.some(({ name }) => name.startsWith('encke-hub:'))));
  const slow = await openTab(context, options);
  const fast = await openTab(context, options);
  await fast.page.evaluate(() => (globalThis.isFree = true));
  const bound = await slow.page.evaluate(async () => (await import('/dist/tab.js')).WAITING_RECORDS_MAX);
  await slow.page.evaluate(() => {
    globalThis.left = new Promise((resolve) => {
      const { postMessage } = BroadcastChannel.prototype;
      BroadcastChannel.prototype.postMessage = function (message) {
        postMessage.call(this, message);
        if (message.type === 'leave') resolve();
      };
    });
  });
  const count = bound + 500;
  for (let next = 0; next < count; next += 100) await Promise.all(numbers(100).map((index) => server.append('slow-tab', next + index)));
  await slow.page.evaluate(() => left);
  await first.page.close();
  // The next hub serves the others, while the slow tab is paused.
  await server.append('slow-tab', count);
  await fast.called(count + 1);
  await slow.page.evaluate(() => {
    globalThis.isFree = true;
    outcomes.shift().resolve();
  });
  const stored = await server.read('slow-tab');
  assert.equal(stored.length, count + 1);
  for (const tab of [slow, fast]) {
    await tab.called(count + 1);
    assert.deepEqual(await tab.calls(), stored);
  }
  await context.close();
});

test('an error of `onState` reaches no other subscription of the tab', TIMEOUT, async () => {
  const context = await browser.newContext();
  const hub = await openHub(context, ` ${BASE}`);
  const tab = await openTab(context, { base: BASE, stream: 'a' });
  await hub.heard('want', 1);
  const errors = [];
  tab.page.on('pageerror', ({ message }) => errors.push(message));
  await tab.page.evaluate(async (BASE) => {
    const { subscribe } = await import('/dist/shared.js');
    globalThis.states = [];
    const throwIt = () => {
      throw new Error('a mistake of the page');
    };
    for (const onState of [throwIt, (state) => states.push(state)]) subscribe({ base: BASE, worker: false, stream: 'b', onState, onRecord() {} });
  }, BASE);
  await hub.heard('want', 3);
  await hub.post({ type: 'state', state: 'live' });
  await waitFor('the state', () => tab.page.evaluate(() => states.length === 1));
  await waitFor('the report', () => errors.length === 1);
  assert.deepEqual(errors, ['a mistake of the page']);
  await context.close();
});

test('a page that may start no SharedWorker, and one that may have no lock', TIMEOUT, async () => {
  await server.create('no-worker');
  await server.append('no-worker', 0);
  const context = await browser.newContext();
  const options = { base: server.url, stream: 'no-worker', worker: true };
  await context.addInitScript(() => {
    globalThis.SharedWorker = class {
      constructor() {
        throw new DOMException('a script of another origin', 'SecurityError');
      }
    };
  });
  const tab = await openTab(context, options);
  await tab.called(1);
  await context.addInitScript(() => {
    LockManager.prototype.request = () => Promise.reject(new DOMException('no storage', 'SecurityError'));
  });
  const other = await openTab(context, options);
  await waitFor('the end', async () => (await other.page.evaluate(() => globalThis.end)) === 'no storage');
  await context.close();
});

test('a sandboxed frame has a connection of its own', TIMEOUT, async () => {
  const context = await browser.newContext();
  const page = await openPage(context);
  const open = await Server.start({ args: ['--cors-origins', '*'] });
  await open.create('sandbox');
  await open.append('sandbox', 0);
  // The frame is of no origin, so that it may load modules only where their server allows it.
  const modules = createServer(async ({ url }, response) => {
    const headers = { 'Content-Type': 'text/javascript', 'Access-Control-Allow-Origin': '*' };
    response.writeHead(200, headers).end(await readFile(join(import.meta.dirname, '../..', url)));
  });
  await once(modules.listen(0, '127.0.0.1'), 'listening');
  await page.evaluate(([base, module]) => {
    globalThis.heard = [];
    globalThis.onmessage = ({ data }) => heard.push(data);
    const frame = document.createElement('iframe');
    frame.sandbox = 'allow-scripts';
    frame.srcdoc = `<script type="module">
      import { subscribe } from '${module}';
      const options = { base: '${base}', stream: 'sandbox', from: '-1', onRecord: ({ messages }) => parent.postMessage(messages, '*') };
      subscribe(options).closed.catch((error) => parent.postMessage(error.message, '*'));
    <\/script>`;
    document.body.append(frame);
  }, [open.url, `http://127.0.0.1:${modules.address().port}/dist/shared.js`]);
  await waitFor('the record', () => page.evaluate(() => heard.length > 0));
  assert.deepEqual(await page.evaluate(() => heard), [[0]]);
  await context.close();
  modules.closeAllConnections();
  modules.close();
  await open.end();
});

test('a tab takes over when the SharedWorker ends before the tabs', TIMEOUT, async () => {
  await server.create('worker-ends');
  const context = await browser.newContext();
  const tabs = await Promise.all([0, 1, 2].map(async () => {
    const tab = await openTab(context, { base: server.url, stream: 'worker-ends', worker: true });
    await tab.page.evaluate(() => (globalThis.isFree = true));
    return tab;
  }));
  await server.append('worker-ends', 0);
  for (const { called } of tabs) await called(1);
  // The worker has told the tabs that it leads, and they wait for its lock.
  const pending = () => tabs[0].page.evaluate(async () => (await navigator.locks.query()).pending.filter(({ name }) => name.startsWith('encke-hub:')).length);
  await waitFor('each tab waits', async () => (await pending()) === tabs.length);
  const session = await browser.newBrowserCDPSession();
  const { targetInfos } = await session.send('Target.getTargets');
  const workers = targetInfos.filter(({ type }) => type === 'shared_worker');
  assert.equal(workers.length, 1);
  await session.send('Target.closeTarget', { targetId: workers[0].targetId });
  await waitFor('a tab leads', async () => (await pending()) === tabs.length - 1);
  await server.append('worker-ends', 1);
  for (const { called } of tabs) await called(2);
  // It may be the one that is closed next.
  await tabs.shift().page.close();
  await server.append('worker-ends', 2);
  for (const { called, calls } of tabs) {
    await called(3);
    assert.deepEqual(await calls(), [0, 1, 2]);
  }
  await context.close();
});
