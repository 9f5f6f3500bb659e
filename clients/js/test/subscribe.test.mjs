// Subscriptions by server-sent events, in Node: each record once and in order over kill -9 and SIGTERM, and how they end.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, EnckeError, subscribe } from '@encke/client';
import { waitFor } from '../../../tests/web/wait.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

let server;

before(async () => {
  server = await Server.start();
});
after(() => server?.end());

/** A subscription, and the messages that came to it. */
function follow(options) {
  const messages = [];
  const ends = [];
  const onRecord = (record) => messages.push(...record.messages);
  const subscription = subscribe({ base: server.url, from: '-1', onRecord, onEnd: (end) => ends.push(end), ...options });
  return { subscription, messages, ends, has: (count) => waitFor(`${count} messages`, () => messages.length >= count) };
}

const byUrl = (stream) => ({ url: `${server.url}/v1/stream/${stream}` });
const byName = (stream) => ({ stream });

for (const [form, options] of [['by name', byName], ['by URL', byUrl]]) {
  test(`${form}: names may have any character`, TIMEOUT, async () => {
    const stream = `two words + 1 & more/${form.length}/é?`;
    const client = new Client({ base: server.url });
    await client.create(stream);
    await client.publish(stream, 'hello');
    const { messages, has, subscription } = follow(options(form === 'by URL' ? encodeURIComponent(stream) : stream));
    await has(1);
    assert.deepEqual(messages, ['hello']);
    subscription.close();
  });
}

for (const [form, options] of [['by name', byName], ['by URL', byUrl]]) {
  test(`${form}: each record once and in order, over kill -9 and SIGTERM`, TIMEOUT, async () => {
    const stream = `cuts ${form}/a`.replaceAll(' ', '-');
    await server.create(stream);
    const { subscription, messages, has } = follow(options(stream));
    let next = 0;
    const appendSome = async () => {
      for (const end = next + 10; next < end; next += 1) await server.append(stream, next);
    };
    for (const how of ['kill', 'stop', 'kill']) {
      await appendSome();
      await has(next);
      await server.restart(how, appendSome);
      await appendSome();
      await has(next);
    }
    await server.close(stream, 'failed');
    await subscription.closed;
    assert.deepEqual(messages, numbers(next));
    assert.equal(subscription.endReason, 'failed');
  });

  test(`${form}: a stream that is closed while the client is away is read to its end`, TIMEOUT, async () => {
    const stream = `away-${form.replace(' ', '-')}`;
    await server.create(stream);
    await server.append(stream, 0);
    const { subscription, messages, has } = follow(options(stream));
    await has(1);
    await server.restart('kill', async () => {
      await server.append(stream, 1);
      await server.close(stream);
    });
    await subscription.closed;
    assert.deepEqual(messages, [0, 1]);
    assert.equal(subscription.endReason, 'done');
  });
}

test('many streams and a pattern have one order over kill -9 in the middle of appends', TIMEOUT, async () => {
  const streams = ['many/a', 'many/b', 'many/c'];
  for (const stream of streams) await server.create(stream);
  const [list, pattern] = [follow({ streams }), follow({ stream: 'many/**' })];
  const client = new Client({ base: server.url });
  let appended = 0;
  const writers = streams.map(async (stream) => {
    for (let number = 0; number < 40; number += 1) {
      await client.publish(stream, { stream, number });
      appended += 1;
    }
  });
  await waitFor('some are appended', () => appended > 30);
  await server.restart('kill');
  await Promise.all(writers);
  for (const { has } of [list, pattern]) await has(appended);
  for (const stream of streams) await client.close(stream, 'done');
  await list.subscription.closed;
  pattern.subscription.close();
  await pattern.subscription.closed;
  assert.deepEqual(list.messages, pattern.messages);
  for (const stream of streams) {
    const got = list.messages.filter((message) => message.stream === stream).map(({ number }) => number);
    assert.deepEqual(got, numbers(40), `each append to ${stream} is stored and delivered once`);
  }
  assert.deepEqual(list.ends.map(({ stream, why, endReason }) => [stream, why, endReason]), streams.map((stream) => [stream, 'closed', 'done']));
});

test('an iteration: the last messages, then new ones, and the end', TIMEOUT, async () => {
  await server.create('iterated');
  await server.append('iterated', ...numbers(10));
  const subscription = subscribe({ base: server.url, stream: 'iterated', last: 3, times: true });
  const messages = [];
  for await (const record of subscription) {
    assert.ok(record.timeMs > 1e12);
    messages.push(...record.messages);
    if (messages.at(-1) === 9) await server.append('iterated', 10);
    if (messages.at(-1) === 10) await server.close('iterated');
  }
  assert.deepEqual(messages, [7, 8, 9, 10]);
  assert.deepEqual([...subscription.ends.values()], [{ stream: 'iterated', why: 'closed', endReason: 'done' }]);
  // Another subscription goes on at its position.
  const later = follow({ stream: 'iterated', after: subscription.position });
  await later.subscription.closed;
  assert.deepEqual(later.messages, []);
});

test('an iteration that is left ends its connection, and so does a signal', TIMEOUT, async () => {
  await server.create('left');
  await server.append('left', 0);
  for await (const { messages } of subscribe({ base: server.url, stream: 'left', from: '-1' })) {
    assert.deepEqual(messages, [0]);
    break;
  }
  const controller = new AbortController();
  const { subscription, has } = follow({ stream: 'left', signal: controller.signal });
  await has(1);
  controller.abort();
  await subscription.closed;
  await waitFor('the server has no subscriber', async () => (await server.metric('encke_subscribers')) === 0);
});

test('a slow reader gets everything, and its handler is awaited', TIMEOUT, async () => {
  await server.create('slow');
  await server.append('slow', ...numbers(5));
  await server.append('slow', 5);
  let running = 0;
  const messages = [];
  const subscription = subscribe({
    base: server.url,
    stream: 'slow',
    from: '-1',
    onRecord: async (record) => {
      assert.equal(++running, 1);
      await new Promise(setImmediate);
      running -= 1;
      messages.push(...record.messages);
      if (messages.length === 6) subscription.close();
    },
  });
  await subscription.closed;
  assert.deepEqual(messages, numbers(6));
});

test('deleted streams end, also if others have their names', TIMEOUT, async () => {
  for (const again of [false, true]) {
    await server.create('deleted');
    await server.append('deleted', 0);
    const { subscription, has } = follow({ stream: 'deleted' });
    await has(1);
    await server.restart('kill', async () => {
      await server.delete('deleted');
      if (again) await server.create('deleted');
    });
    await subscription.closed;
    assert.equal(subscription.ends.get('deleted').why, 'deleted');
  }
});

test('text and bytes', TIMEOUT, async () => {
  for (const [stream, type, text] of [['text', 'text/plain', 'Grüße\n\nund mehr'], ['bytes', 'image/png', '\x01\x02']]) {
    await server.request('PUT', `/v1/stream/${stream}`, { headers: { 'Content-Type': type, 'Stream-Closed': 'true' }, body: text });
    for (const options of [byName(stream), { ...byUrl(stream), json: false }]) {
      for await (const record of subscribe({ base: server.url, from: '-1', ...options })) {
        assert.equal(record.text ?? atob(record.base64), text);
      }
    }
  }
});

test('refusals have status, code and message, and a reader can ask to stop', TIMEOUT, async () => {
  const missing = subscribe({ base: server.url, stream: 'missing', onRecord() {} });
  await assert.rejects(missing.closed, (error) => error instanceof EnckeError && error.status === 404 && error.code === 'not_found' && /stream/.test(error.message));
  await assert.rejects(async () => {
    for await (const _ of subscribe({ base: server.url, stream: 'missing' }));
  }, { code: 'not_found' });
  assert.throws(() => subscribe({ base: server.url }), TypeError);
  await server.create('stop');
  for (const options of [byName('stop'), byUrl('stop')]) {
    let stopped = 0;
    let live;
    const isLive = new Promise((resolve) => (live = resolve));
    const { subscription } = follow({ ...options, onStop: () => (stopped += 1), onState: (state) => state === 'live' && live() });
    await isLive;
    if (options.stream) await new Client({ base: server.url }).stop('stop');
    await waitFor('it is asked to stop', () => stopped === 1);
    subscription.close();
  }
  const failing = subscribe({ base: server.url, stream: 'stop', from: '-1', onRecord: () => Promise.reject(new Error('mine')) });
  const fails = assert.rejects(failing.closed, /mine/);
  await server.append('stop', 1);
  await fails;
});
