// Subscriptions against responses that a test writes: line ends, cuts at every byte, events that are no JSON, ends, and their one consumer.

import assert from 'node:assert/strict';
import { after, before, mock, test } from 'node:test';
import { Client, subscribe } from '@encke/client';
import { waitFor } from '../../../tests/web/wait.mjs';
import { eventsOf } from '../dist/event-stream.js';
import { ENDS_MAX } from '../dist/following.js';
import { HTML, NEVER, withScripted } from './scripted.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };
const EVENTS = { 'Content-Type': 'text/event-stream' };
const QUIET = { headers: EVENTS, body: ': quiet\n\n', stays: true };
const record = (number) => `id: ${number}\ndata: {"stream":"s","nextOffset":"${number}","messages":[${number}]}\n\n`;
const PROBLEM = { 'Content-Type': 'application/problem+json' };
const END = 'event: end\ndata: {"stream":"s","why":"closed","endReason":"done"}\n\n';

let server;

before(async () => {
  server = await Server.start();
});
after(() => server?.end());

test('a subscription to something else says so in its state, and ends with the error', TIMEOUT, async () => {
  const foreign = [HTML, { status: 206, headers: { 'Content-Type': 'text/event-stream' } }, { status: 200 }];
  await Promise.all(
    foreign.map((answer) =>
      withScripted(() => answer, async ({ url, requests }) => {
        const states = [];
        const options = { base: url, stream: 's', foreignMsMax: 1, onRecord() {}, onState: (state, error) => states.push([state, error?.code]) };
        await assert.rejects(subscribe(options).closed, { code: 'not_encke' });
        assert.equal(requests.length, 2);
        assert.deepEqual(states, [['away', 'not_encke']]);
      }),
    ),
  );
});

/** The events of a body that comes in these chunks. */
async function eventsIn(chunks) {
  const body = new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(chunk);
      controller.close();
    },
  });
  const events = [];
  for await (const event of eventsOf(body, 60_000, new AbortController())) events.push(event);
  return events;
}

for (const [name, lineEnd] of [['LF', '\n'], ['CR', '\r'], ['CRLF', '\r\n']]) {
  test(`event streams with ${name} have the same events, cut at every byte`, TIMEOUT, async () => {
    const lines = ['\uFEFFid: 1', 'data: Grüße', 'data', 'data:  zwei', '', ': comment', 'event: end', 'retry: 5', 'data: x', '', 'data: left out'];
    const bytes = new TextEncoder().encode(lines.join(lineEnd));
    const cuts = numbers(bytes.length + 1).map((at) => [bytes.slice(0, at), bytes.slice(at)]);
    cuts.push([...bytes].map((byte) => Uint8Array.of(byte)));
    for (const chunks of cuts) assert.deepEqual(await eventsIn(chunks), [{ id: '1', data: 'Grüße\n\n zwei' }, { name: 'end', retryMs: 5, data: 'x' }]);
  });
}

test('an event that is not one of Encke is asked for again, and is an error if it stays', TIMEOUT, async () => {
  const bad = ['data: {"stream":\n\n', 'data: null\n\n', 'data: [1]\n\n', 'event: end\ndata: oops\n\n', 'event: stop\ndata: {}\n\n'];
  await Promise.all(
    bad.map((event) =>
      withScripted(() => ({ headers: EVENTS, body: event }), async ({ url, requests }) => {
        const states = [];
        const options = { base: url, stream: 's', foreignMsMax: 1, onRecord() {}, onState: (state, error) => states.push(error?.code ?? state) };
        await assert.rejects(subscribe(options).closed, { name: 'EnckeError', code: 'not_encke', message: /no object of JSON/ });
        assert.equal(requests.length, 2);
        assert.deepEqual(states, ['live', 'not_encke', 'live']);
      }),
    ),
  );
});

test('no record is lost behind an event that was not one of Encke', TIMEOUT, async () => {
  const answers = [`${record(1)}id: 2\ndata: garbled\n\n`, `${record(2)}${END}`];
  await withScripted((_, number) => ({ headers: EVENTS, body: answers[number - 1] }), async ({ url, requests }) => {
    const messages = [];
    await subscribe({ base: url, stream: 's', onRecord: (record) => messages.push(...record.messages) }).closed;
    assert.deepEqual(messages, [1, 2]);
    assert.match(requests[1].url, /lastEventId=1$/);
  });
});

test('a stream of text that is followed as one of JSON is an error that names the option', TIMEOUT, async () => {
  await server.request('PUT', '/v1/stream/text', { headers: { 'Content-Type': 'text/plain' }, body: 'no JSON' });
  const { closed } = subscribe({ url: `${server.url}/v1/stream/text`, from: '-1', onRecord() {} });
  await assert.rejects(closed, { code: 'not_json', message: /json: false/ });
});

test('a 204 of a portal ends no stream', TIMEOUT, async () => {
  for (const after of [undefined, '1']) {
    const answer = ({ method }) => (method === 'HEAD' ? { headers: { 'Stream-Next-Offset': '1' } } : { status: 204 });
    await withScripted(answer, async ({ url, requests }) => {
      const subscription = subscribe({ base: url, stream: 's', after, foreignMsMax: 1, onRecord() {} });
      await assert.rejects(subscription.closed, { code: 'not_encke' });
      assert.equal(subscription.ends.size, 0);
      assert.equal(requests.filter(({ method }) => method === 'GET').length, 2);
    });
  }
  // A server of the protocol says what it means by 204.
  for (const [headers, outcome] of [[{}, 'not_encke'], [{ 'Stream-Closed': 'true' }, 'closed']]) {
    await withScripted(() => ({ status: 204, headers }), async ({ url }) => {
      const subscription = subscribe({ url: `${url}/s`, after: '1', foreignMsMax: 0, onRecord() {} });
      assert.equal(await subscription.closed.then(() => [...subscription.ends.values()][0].why, ({ code }) => code), outcome);
    });
  }
});

test('a stream whose end the caller may not look up is not reported as deleted', TIMEOUT, async () => {
  const answer = ({ method }) => (method === 'HEAD' ? { status: 403, headers: PROBLEM } : { status: 204 });
  await withScripted(answer, async ({ url }) => {
    const subscription = subscribe({ base: url, stream: 's', after: '1', onRecord() {} });
    await assert.rejects(subscription.closed, { status: 403 });
    assert.equal(subscription.ends.size, 0);
  });
});

test('a subscription that was live waits for Encke behind a balancer without a server, and takes its 404 for no deletion', TIMEOUT, async () => {
  const notFound = { status: 404, headers: { 'Content-Type': 'text/html' }, body: 'default backend' };
  const answers = [{ headers: EVENTS, body: record(1) }, HTML, notFound, { status: 204 }, notFound, { status: 404, headers: PROBLEM }];
  await withScripted((_, number) => answers[number - 1], async ({ url, requests }) => {
    const states = [];
    const messages = [];
    const onRecord = (record) => void messages.push(...record.messages);
    const subscription = subscribe({ base: url, stream: 's', foreignMsMax: 0, onRecord, onState: (state, error) => states.push(error?.code ?? state) });
    await subscription.closed;
    assert.deepEqual(messages, [1]);
    assert.deepEqual(states, ['live', 'away', 'not_encke', 'http', 'http']);
    assert.deepEqual([...subscription.ends.values()], [{ stream: 's', why: 'deleted' }]);
    assert.deepEqual(requests.map(({ method }) => method), ['GET', 'GET', 'GET', 'GET', 'HEAD', 'HEAD']);
  });
});

test('records that wait for their position are forgotten when the connection is cut', TIMEOUT, async () => {
  const data = 'event: data\ndata: [1]\n\n';
  const answers = [data, `${data}event: control\ndata: {"streamNextOffset":"5","streamClosed":true}\n\n`];
  await withScripted((_, number) => ({ headers: EVENTS, body: answers[number - 1] }), async ({ url }) => {
    const messages = [];
    for await (const record of subscribe({ url: `${url}/s`, from: '-1' })) messages.push(...record.messages);
    assert.deepEqual(messages, [1]);
  });
});

test('a connection that is not answered is silent, too', TIMEOUT, async () => {
  await withScripted((_, number) => (number < 3 ? NEVER : { headers: EVENTS, body: record(1) + END }), async ({ url, requests }) => {
    const states = [];
    const messages = [];
    const onState = (state, error) => states.push(error?.cause?.message ?? state);
    for await (const record of subscribe({ base: url, stream: 's', silenceMsMax: 200, onState })) messages.push(...record.messages);
    assert.deepEqual(messages, [1]);
    assert.equal(requests.length, 3);
    assert.deepEqual(states, ['nothing came for 200 ms', 'nothing came for 200 ms', 'live']);
  });
});

test('anything that a callback throws ends the subscription', TIMEOUT, async () => {
  await withScripted(() => ({ headers: EVENTS, body: record(1), stays: true }), async ({ url }) => {
    for (const thrown of [undefined, null, 0, new Error('of the application')]) {
      const raise = () => {
        throw thrown;
      };
      const callbacks = [{ onRecord: raise }, { onRecord: () => Promise.reject(thrown) }, { onState: raise, onRecord() {} }];
      for (const callback of callbacks) {
        const outcome = await subscribe({ base: url, stream: 's', ...callback }).closed.then(() => ['resolved'], (error) => ['rejected', error]);
        assert.deepEqual(outcome, ['rejected', thrown]);
      }
    }
  });
});

test('a stream stays while another one of the list is deleted and created again', TIMEOUT, async () => {
  const client = new Client({ base: server.url });
  for (const stream of ['list/a', 'list/b']) await client.create(stream);
  const { nextOffset } = await client.publish('list/a', 0);
  const messages = [];
  const subscription = subscribe({
    base: server.url,
    streams: [{ stream: 'list/a', from: nextOffset }, 'list/b'],
    onRecord: (record) => messages.push(...record.messages),
  });
  await client.publish('list/a', 1);
  await waitFor('the first message', () => messages.length > 0);
  await server.restart('kill', async () => {
    await server.delete('list/a');
    await server.create('list/a');
  });
  await client.publish('list/b', 'last');
  await client.close('list/b', 'done');
  await subscription.closed;
  assert.equal(messages.at(-1), 'last');
  assert.deepEqual([...subscription.ends.values()].map(({ stream, why }) => [stream, why]).sort(), [['list/a', 'deleted'], ['list/b', 'closed']]);
});

test('an iteration that waits ends with its return, with close() and with its signal', TIMEOUT, async () => {
  await withScripted(() => QUIET, async ({ url, requests }) => {
    const ways = {
      return: (iterator) => iterator.return(),
      close: (_, subscription) => subscription.close(),
      signal: (_, __, controller) => controller.abort(),
    };
    for (const options of [{}, { token: () => NEVER }, { fetch: () => NEVER }, { fetch: async () => new Response(new ReadableStream(), { headers: EVENTS }) }]) {
      for (const [name, end] of Object.entries(ways)) {
        const before = requests.length;
        const controller = new AbortController();
        const subscription = subscribe({ base: url, stream: 's', signal: controller.signal, ...options });
        const iterator = subscription[Symbol.asyncIterator]();
        const next = iterator.next();
        if (!options.token && !options.fetch) await waitFor('it is quiet', () => requests.length > before);
        await end(iterator, subscription, controller);
        assert.deepEqual(await next, { done: true, value: undefined }, name);
        await subscription.closed;
      }
    }
  });
});

test('a silence without an end has a timer of the longest time, and not one that fires at once', async () => {
  const timers = mock.method(globalThis, 'setTimeout');
  const body = new ReadableStream({ start: (controller) => controller.close() });
  for await (const event of eventsOf(body, Infinity, new AbortController())) assert.fail(event);
  timers.mock.restore();
  const times = timers.mock.calls.map(({ arguments: [, ms] }) => ms);
  assert.ok(times.includes(2 ** 31 - 1) && !times.includes(Infinity), String(times));
});

test('a subscription has one consumer', TIMEOUT, async () => {
  await withScripted(() => ({ headers: EVENTS, body: numbers(3).map(record).join('') + END }), async ({ url }) => {
    const subscription = subscribe({ base: url, stream: 's' });
    const consume = async () => {
      const messages = [];
      for await (const record of subscription) messages.push(...record.messages);
      return messages;
    };
    const [first, ...others] = await Promise.allSettled([consume(), consume(), consume()]);
    assert.deepEqual(first.value, numbers(3));
    for (const { reason } of others) assert.match(String(reason), /^TypeError: .*iterated already/);
    await assert.rejects(consume(), /iterated already/);
    const called = subscribe({ base: url, stream: 's', onRecord() {} });
    assert.throws(() => called[Symbol.asyncIterator](), /go to `onRecord`/);
    await called.closed;
  });
});

test('`last` is refused with a name that a server would read as another name and a position', TIMEOUT, async () => {
  await server.create('user');
  await server.append('user', 'of another stream');
  for (const position of ['now', '-1', '0000000000000003_0000000000000000']) {
    const stream = `user@${position}`;
    await server.create(stream);
    await server.append(stream, 'mine');
    for (const options of [{ stream }, { streams: [stream] }]) assert.throws(() => subscribe({ base: server.url, last: 1, ...options }), /`last` cannot be used with user@/);
    for await (const { stream: from, messages } of subscribe({ base: server.url, last: 1, streams: [{ stream, from: '-1' }, 'user'] })) {
      if (from === stream) {
        assert.deepEqual(messages, ['mine']);
        break;
      }
    }
  }
  const stream = 'user@example.com';
  await server.create(stream);
  await server.append(stream, 0, 1);
  for await (const { messages } of subscribe({ base: server.url, last: 1, stream })) {
    assert.deepEqual(messages, [1]);
    break;
  }
});

test('the ends of the streams of a pattern are bounded', TIMEOUT, async () => {
  const ends = numbers(ENDS_MAX + 10).map((number) => `event: end\ndata: {"stream":"s/${number}","why":"closed"}\n\n`);
  await withScripted(() => ({ headers: EVENTS, body: ends.join('') + record(1), stays: true }), async ({ url }) => {
    let count = 0;
    const subscription = subscribe({ base: url, stream: 's/**', onEnd: () => (count += 1) });
    for await (const _ of subscription) break;
    assert.equal(count, ends.length);
    assert.deepEqual([subscription.ends.size, subscription.ends.has('s/9'), subscription.ends.has('s/10')], [ENDS_MAX, false, true]);
  });
});

test('an error of a callback ends the subscription with that error', TIMEOUT, async () => {
  await withScripted(() => ({ headers: EVENTS, body: record(1) + END }), async ({ url }) => {
    for (const name of ['onRecord', 'onEnd', 'onState']) {
      const mine = () => {
        throw new Error(`mine of ${name}`);
      };
      await assert.rejects(subscribe({ base: url, stream: 's', onRecord() {}, [name]: mine }).closed, new RegExp(`mine of ${name}`));
    }
  });
});
