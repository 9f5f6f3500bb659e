// The connection of a channel: the time between attempts, tokens by any clock, and servers that send what they should not.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { Channel } from '@encke/client/websocket';
import { waitFor } from '../../../tests/web/wait.mjs';
import { SERVER_DELAY_MS_MAX, TIMER_MS_MAX } from '../dist/backoff.js';
import { appended, refusal, scripted } from './scripted-socket.mjs';

const TIMEOUT = { timeout: 120_000 };
const HOUR_MS = 3_600_000;

const channels = [];
after(() => {
  for (const channel of channels) channel.close();
});

function open(options) {
  const { WebSocket, socket, sockets } = scripted();
  const channel = new Channel({ base: 'http://server.test', WebSocket, ...options });
  channels.push(channel);
  return { channel, socket, sockets };
}

/** Notes the delays of the client's timers. Those of up to `firesMs` fire at once, and longer ones never. */
function noteDelays(t, firesMs) {
  const delays = [];
  const { setTimeout } = globalThis;
  t.mock.method(globalThis, 'setTimeout', (callback, ms) => {
    delays.push(ms);
    return ms <= firesMs ? setTimeout(callback, 0) : setTimeout(() => {}, 0);
  });
  return delays;
}

test('without a WebSocket the constructor says so', (t) => {
  const descriptor = Object.getOwnPropertyDescriptor(globalThis, 'WebSocket');
  if (descriptor) {
    delete globalThis.WebSocket;
    t.after(() => Object.defineProperty(globalThis, 'WebSocket', descriptor));
  }
  assert.throws(() => new Channel({ base: 'http://server.test' }), { code: 'no_websocket', message: /option `WebSocket`/ });
});

test('a URL that no WebSocket may have ends the channel with the error', TIMEOUT, async () => {
  class Refusing {
    constructor() {
      throw new SyntaxError('this page may not open it');
    }
  }
  const { channel } = open({ WebSocket: Refusing });
  await assert.rejects(channel.append('a', 1), SyntaxError);
});

test('connections that are closed after they have opened are tried again after longer and longer times', TIMEOUT, async (t) => {
  const delays = noteDelays(t, 60_000);
  const { channel, socket } = open();
  channel.subscribe({ stream: 'a', onRecord() {} });
  for (let index = 0; index < 9; index += 1) {
    const one = await socket(index);
    const [{ id }] = await one.messages('subscribe', 1);
    one.say({ type: 'subscribed', id, stream: 'a', offset: '1' });
    one.cut(index % 2 ? 1006 : 1001);
  }
  await waitFor('the delays', () => delays.length === 9);
  for (const [index, ms] of delays.entries()) {
    const full = Math.min(30_000, 250 * 2 ** index);
    assert.ok(ms >= full / 2 && ms <= full, `${ms} ms at attempt ${index}`);
  }
  // A record, or an acknowledgement, shows that the connection is of use.
  const useful = await socket(9);
  const [{ id }] = await useful.messages('subscribe', 1);
  useful.say({ type: 'subscribed', id, stream: 'a', offset: '1' }, { type: 'records', stream: 'a', offset: '2', data: [1] });
  useful.cut();
  await waitFor('the next delay', () => delays.length === 10);
  assert.ok(delays[9] <= 250, `${delays[9]} ms`);
});

test('a message that is no object of JSON closes the connection, and nothing is lost', TIMEOUT, async () => {
  const errors = [];
  const { channel, socket } = open({ onState: (state, error) => state === 'away' && errors.push(error.code) });
  const outcome = channel.append('a', 1);
  const NONE = ['no JSON', 'null', '5', '"text"', ''];
  for (const [index, text] of NONE.entries()) {
    const one = await socket(index);
    await one.messages('append', 1);
    one.say(text);
    assert.equal(one.isClosed, true);
    // It belongs to a connection that was given up.
    one.say({ type: 'error', status: 400, code: 'bad_json', id: 1 });
  }
  assert.deepEqual(errors, NONE.map(() => 'bad_message'));
  const last = await socket(NONE.length);
  last.say(appended((await last.messages('append', 1))[0]));
  assert.equal((await outcome).offset, '1');
});

test('odd messages do no harm', TIMEOUT, async () => {
  const { channel, socket } = open();
  const { subscription } = { subscription: channel.subscribe({ stream: 'a', onRecord() {} }) };
  const one = await socket(0);
  const [{ id }] = await one.messages('subscribe', 1);
  one.say({}, [], { type: 'unknown' }, { type: 'records', stream: 'other', data: [1] }, { type: 'error' }, { id: 1e9, type: 'appended' });
  one.say({ type: 'subscribed', id, stream: 'a', offset: '1' }, { type: 'unknown', stream: 'a' });
  assert.equal(await subscription.begun, '1');
});

test('a message whose fields have other types closes the connection, and the next one continues', TIMEOUT, async () => {
  const errors = [];
  const { channel, socket } = open({ onState: (state, error) => state === 'away' && errors.push(error.code) });
  const subscription = channel.subscribe({ stream: 'a', onRecord() {} });
  const odd = await socket(0);
  odd.say({ type: 'subscribed', id: (await odd.messages('subscribe', 1))[0].id, stream: 'a', offset: '1', ended: 5 });
  assert.equal(odd.isClosed, true);
  const next = await socket(1);
  const [again] = await next.messages('subscribe', 1);
  assert.equal(again.offset, '1');
  next.say({ type: 'subscribed', id: again.id, stream: 'a', offset: '1', ended: [{ stream: 'a', reason: 'closed' }] });
  await subscription.closed;
  assert.deepEqual(errors, ['bad_message']);
});

test('an error of `onState` is reported, and stops nothing', TIMEOUT, async (t) => {
  const reports = [];
  t.mock.method(globalThis, 'queueMicrotask', (report) => reports.push(report));
  const { channel, socket } = open({
    onState: (state) => {
      throw new Error(`a mistake of the page: ${state}`);
    },
  });
  const outcome = channel.append('a', 1);
  const first = await socket(0);
  await first.messages('append', 1);
  first.cut();
  const second = await socket(1);
  second.say(appended((await second.messages('append', 1))[0]));
  await outcome;
  assert.equal(reports.length, 3);
  for (const [index, state] of ['live', 'away', 'live'].entries()) assert.throws(reports[index], { message: `a mistake of the page: ${state}` });
});

test('a token that comes behind close() changes no state', TIMEOUT, async () => {
  const states = [];
  let refuse;
  const { channel, sockets } = open({ token: () => new Promise((_, reject) => (refuse = reject)), onState: (state) => states.push(state) });
  await waitFor('the token is asked for', () => refuse);
  channel.close();
  refuse(new Error('too late'));
  await new Promise(setImmediate);
  assert.deepEqual([states, sockets], [[], []]);
});

test('the delays that a server asks for are bounded', TIMEOUT, async (t) => {
  const delays = noteDelays(t, 0);
  for (const [retryAfter, least, most] of [
    [2_592_000, SERVER_DELAY_MS_MAX, SERVER_DELAY_MS_MAX],
    [1e300, SERVER_DELAY_MS_MAX, SERVER_DELAY_MS_MAX],
    [0.001, 250, 250],
    [-5, 1_000, 1_500],
    [0, 1_000, 1_500],
    ['text', 1_000, 1_500],
    [undefined, 1_000, 1_500],
    [2, 2_000, 3_000],
  ]) {
    delays.length = 0;
    const { channel, socket } = open();
    channel.append('a', 1).catch(() => {});
    channel.subscribe({ stream: 'a', onRecord() {} });
    const one = await socket(0);
    const [append] = await one.messages('append', 1);
    const [subscribe] = await one.messages('subscribe', 1);
    one.say(...[append, subscribe].map((message) => refusal(message, 429, 'request_rate', { retryAfter })));
    assert.equal(delays.length, 2);
    for (const ms of delays) assert.ok(ms >= least && ms <= most, `${ms} ms for ${retryAfter}`);
  }
});

test('a token is renewed by the time that it has left, and not by the clock of the client', TIMEOUT, async (t) => {
  for (const [authenticated, expected] of [
    [{ until: Date.now() - 2 * HOUR_MS, expiresInMs: 600_000 }, 480_000],
    [{ until: Date.now() + HOUR_MS, expiresInMs: 1 }, 1_000],
    [{ until: 1e15, expiresInMs: 1e15 }, TIMER_MS_MAX],
    // A server that says only when it ends.
    [{ until: Date.now() - 2 * HOUR_MS }, 30_000],
    [{ until: 1e15 }, TIMER_MS_MAX],
    [{}, undefined],
    [{ expiresInMs: 'abc' }, undefined],
    [{ expiresInMs: {}, until: 'soon' }, undefined],
    [{ expiresInMs: null }, undefined],
    [{ until: 'abc' }, undefined],
  ]) {
    const delays = noteDelays(t, 0);
    const { socket } = open({ token: () => 'a token' });
    const one = await socket(0);
    const [{ id }] = await one.messages('authenticate', 1);
    one.say({ type: 'authenticated', id, ...authenticated });
    assert.deepEqual(delays, expected === undefined ? [] : [expected], JSON.stringify(authenticated));
    t.mock.restoreAll();
  }
});
