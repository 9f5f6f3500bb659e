// The records of a channel's subscription that wait for its consumer: one handler at a time, one consumer, and a bounded queue.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Channel } from '@encke/client/websocket';
import { waitFor } from '../../../tests/web/wait.mjs';
import { WAITING_CHARS_MAX } from '../dist/channel-subscription.js';
import { ENDS_MAX } from '../dist/following.js';
import { bytesPerStream } from './memory.mjs';
import { refusal, scripted } from './scripted-socket.mjs';
import { numbers } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

const channels = [];
after(() => {
  for (const channel of channels) channel.close();
});

/** A subscription of a channel whose server is the test, and which has begun at the offset 0. */
async function begin(options) {
  const { WebSocket, socket, sockets } = scripted();
  const channel = new Channel({ base: 'http://server.test', WebSocket });
  channels.push(channel);
  const subscription = channel.subscribe({ stream: 'a', from: '-1', ...options });
  subscription.closed.catch(() => {});
  const first = await socket(0);
  const [{ id, stream }] = await first.messages('subscribe', 1);
  first.say({ type: 'subscribed', id, ...(stream === 'a' ? { stream, offset: '0' } : { subscription: stream, position: '0' }) });
  await subscription.begun;
  return { channel, subscription, socket, sockets, first };
}

const recordOf = (number, more) => ({ type: 'records', stream: 'a', offset: String(number), data: [number], ...more });

/** A handler whose calls end when the test ends them. */
function held() {
  const calls = [];
  const onRecord = ({ messages: [number] }) => new Promise((resolve, reject) => calls.push({ number, resolve, reject }));
  return { calls, onRecord, called: (count) => waitFor(`${count} calls`, () => calls.length >= count) };
}

test('one handler at a time, in order, and the end behind the last one', TIMEOUT, async () => {
  const { calls, onRecord, called } = held();
  const ends = [];
  const { subscription, first } = await begin({ onRecord, onEnd: (end) => ends.push(end) });
  first.say(recordOf(1), recordOf(2), recordOf(3, { ended: 'closed', endReason: 'done' }));
  for (const number of [1, 2, 3]) {
    await called(number);
    await new Promise(setImmediate);
    assert.deepEqual([calls.length, ends.length, subscription.position], [number, 0, String(number)]);
    calls.at(-1).resolve();
  }
  await subscription.closed;
  assert.deepEqual(calls.map(({ number }) => number), [1, 2, 3]);
  assert.deepEqual(ends, [{ stream: 'a', why: 'closed', endReason: 'done' }]);
});

test('an error of a handler or of another callback ends the subscription with it', TIMEOUT, async () => {
  const failure = new Error('a mistake of the page');
  const fail = () => Promise.reject(failure);
  const throwIt = () => {
    throw failure;
  };
  for (const [callbacks, message] of [
    [{ onRecord: fail }, recordOf(1)],
    [{ onRecord: throwIt }, recordOf(1)],
    [{ onRecord() {}, onStop: throwIt }, { type: 'position', stream: 'a', offset: '1', stopRequested: true }],
    [{ onRecord() {}, onEnd: throwIt }, { type: 'ended', stream: 'a', reason: 'deleted' }],
  ]) {
    let count = 0;
    const onRecord = (record) => {
      count += 1;
      return callbacks.onRecord(record);
    };
    const { channel, subscription, first } = await begin({ ...callbacks, onRecord });
    first.say(message, recordOf(2));
    await assert.rejects(subscription.closed, failure);
    assert.equal(count, message.type === 'records' ? 1 : 0);
    await first.messages('unsubscribe', 1);
    assert.doesNotThrow(() => channel.subscribe({ stream: 'a' }));
  }
});

test('an error that is no value ends the subscription with an error', TIMEOUT, async () => {
  for (const value of [undefined, null, 0, '']) {
    for (const callbacks of [
      { onRecord: () => Promise.reject(value) },
      {
        onRecord() {},
        onEnd() {
          throw value;
        },
      },
    ]) {
      const { subscription, first } = await begin(callbacks);
      first.say(recordOf(1, { ended: 'closed' }));
      await assert.rejects(subscription.closed, { message: `a function of the caller has thrown ${value}` });
    }
  }
});

test('a stream that is deleted while its subscription is paused, or its connection away, has ended', TIMEOUT, async () => {
  for (const isPaused of [true, false]) {
    const { calls, onRecord, called } = held();
    const ends = [];
    const { subscription, first, socket } = await begin({ onRecord, onEnd: (end) => ends.push(end) });
    const text = 'x'.repeat(WAITING_CHARS_MAX / 2);
    first.say(recordOf(1));
    await called(1);
    first.say(recordOf(2, { text }));
    // There is no place for the third one.
    if (isPaused) first.say(recordOf(3, { text }));
    else first.cut();
    calls[0].resolve();
    await called(2);
    calls[1].resolve();
    const one = await socket(isPaused ? 0 : 1);
    const again = (await one.messages('subscribe', isPaused ? 2 : 1)).at(-1);
    one.say(refusal(again, 404, 'not_found'));
    await subscription.closed;
    assert.deepEqual(ends, [{ stream: 'a', why: 'deleted' }]);
  }
});

test('a subscription has one consumer, which can leave a quiet stream', TIMEOUT, async () => {
  const { subscription, first } = await begin();
  const iterator = subscription[Symbol.asyncIterator]();
  assert.throws(() => subscription[Symbol.asyncIterator](), /iterated already/);
  first.say(recordOf(1));
  assert.equal((await iterator.next()).value.nextOffset, '1');
  const next = iterator.next();
  assert.deepEqual(await iterator.return(), { done: true, value: undefined });
  assert.deepEqual(await next, { done: true, value: undefined });
  await subscription.closed;
  await first.messages('unsubscribe', 1);
  const { subscription: handled } = await begin({ onRecord() {} });
  assert.throws(() => handled[Symbol.asyncIterator](), /go to `onRecord`/);
});

test('nothing is delivered behind close()', TIMEOUT, async () => {
  const { calls, onRecord, called } = held();
  const { subscription, first } = await begin({ onRecord });
  first.say(recordOf(1), recordOf(2));
  await called(1);
  subscription.close();
  calls[0].resolve();
  await subscription.closed;
  await new Promise(setImmediate);
  assert.equal(calls.length, 1);
  assert.equal(subscription.position, '1');
});

test('a slow consumer bounds what waits, and continues behind the last record that it has', TIMEOUT, async () => {
  const { calls, onRecord, called } = held();
  const { subscription, first } = await begin({ onRecord });
  const text = 'x'.repeat(WAITING_CHARS_MAX / 4);
  first.say(recordOf(1));
  await called(1);
  // Each has a little more than a quarter.
  first.say(...[2, 3, 4, 5, 6].map((number) => recordOf(number, { text })));
  await first.messages('unsubscribe', 1);
  assert.equal((await first.messages('subscribe', 1)).length, 1);
  for (const number of [1, 2, 3, 4]) {
    await called(number);
    calls.at(-1).resolve();
  }
  const [, again] = await first.messages('subscribe', 2);
  assert.equal(again.offset, '4');
  // These are of the subscription before.
  first.say(recordOf(7), { type: 'unsubscribed', stream: 'a' });
  first.say({ type: 'subscribed', id: again.id, stream: 'a', offset: '4' }, recordOf(5), recordOf(6));
  for (const number of [5, 6]) {
    await called(number);
    calls.at(-1).resolve();
  }
  assert.deepEqual(calls.map(({ number }) => number), [1, 2, 3, 4, 5, 6]);
  assert.equal(subscription.position, '6');
});

test('a single message may be larger than the bound', TIMEOUT, async () => {
  const { subscription, first } = await begin();
  first.say(recordOf(1, { data: ['x'.repeat(WAITING_CHARS_MAX + 1)] }));
  for await (const { nextOffset } of subscription) {
    assert.equal(nextOffset, '1');
    break;
  }
});

test('records that wait during a cut are handled before the subscription continues', TIMEOUT, async () => {
  const { calls, onRecord, called } = held();
  const { first, socket } = await begin({ onRecord });
  first.say(recordOf(1), recordOf(2));
  await called(1);
  first.cut();
  const second = await socket(1);
  await waitFor('it is open', () => second.isOpen);
  assert.deepEqual(second.sent, []);
  calls[0].resolve();
  await called(2);
  calls[1].resolve();
  const [message] = await second.messages('subscribe', 1);
  assert.equal(message.offset, '2');
  assert.equal(calls.length, 2);
});

test('a subscription that ends before it has begun settles', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = new Channel({ base: 'http://server.test', WebSocket });
  channels.push(channel);
  const [refused, closed] = ['refused', 'closed'].map((stream) => channel.subscribe({ stream, onRecord() {} }));
  const first = await socket(0);
  const [message] = await first.messages('subscribe', 2);
  first.say(refusal(message, 404, 'not_found'));
  await assert.rejects(refused.closed, { code: 'not_found' });
  await assert.rejects(refused.begun, { code: 'not_found' });
  closed.close();
  await closed.closed;
  await assert.rejects(closed.begun, { code: 'subscription_closed' });
});

test('a consumer that is always behind keeps nothing of the records that it has handled', TIMEOUT, async () => {
  let handled = 0;
  let release;
  const onRecord = () => new Promise((resolve) => {
    handled += 1;
    release = resolve;
  });
  const { first } = await begin({ onRecord });
  let said = 0;
  const bytes = await bytesPerStream(async (streams) => {
    for (const text of streams) {
      first.say(recordOf((said += 1), { text }));
      // One record is at the handler, and another one waits.
      if (said < 3) continue;
      const before = handled;
      release?.();
      while (handled === before) await new Promise(setImmediate);
    }
  });
  assert.ok(handled > 10_000 && handled < said);
  assert.ok(bytes < 32, `${bytes} bytes for each record`);
});

test('a pattern keeps a bounded number of the streams that have ended', TIMEOUT, async () => {
  let ends = 0;
  const { subscription, first } = await begin({ stream: 'short/**', onRecord() {}, onEnd: () => (ends += 1) });
  const ended = (stream, position) => ({ type: 'ended', subscription: 'short/**', position: String(position), stream, reason: 'closed' });
  const bytes = await bytesPerStream(async (streams) => {
    const before = ends;
    first.say(...streams.map(ended));
    await waitFor('the ends', () => ends === before + streams.length);
  });
  assert.equal(subscription.ends.size, ENDS_MAX);
  assert.ok(bytes < 32, `${bytes} bytes for each stream`);
});
