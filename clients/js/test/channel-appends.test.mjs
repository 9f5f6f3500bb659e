// Appends over a channel: an acknowledged append is stored, whatever was refused, lost or created again before it.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Channel } from '@encke/client/websocket';
import { WebSocket } from 'ws';
import { appended, refusal, scripted } from './scripted-socket.mjs';
import { bytesPerStream } from './memory.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

let server;
const channels = [];

before(async () => {
  server = await Server.start();
});
after(async () => {
  for (const channel of channels) channel.close();
  await server?.end();
});

function open(options) {
  const channel = new Channel({ base: server.url, WebSocket, ...options });
  channels.push(channel);
  return channel;
}

/** The producer of a message, without its id. */
const numbersOf = ({ producer: { epoch, seq } }) => `${epoch}/${seq}`;

test('appends are stored after the stream was deleted and created again', TIMEOUT, async () => {
  const channel = open();
  for (const round of [0, 1, 2]) {
    await server.create('again');
    for (const number of [0, 1, 2]) await channel.append('again', number);
    await Promise.all([3, 4].map((number) => channel.append('again', number)));
    assert.deepEqual(await server.read('again'), numbers(5), `round ${round}`);
    await server.delete('again');
    await assert.rejects(channel.append('again', 5), { status: 404 });
  }
});

test('appends under way go on with another epoch when the stream was created again', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const outcomes = Promise.all([0, 1, 2].map((number) => channel.append('a', number)));
  const { messages, say } = bound(await socket(0));
  const first = await messages('append', 3);
  assert.deepEqual(first.map(numbersOf), ['0/0', '0/1', '0/2']);
  say(appended(first[0]));
  for (const message of first.slice(1)) say(refusal(message, 409, 'sequence_gap'));
  const again = (await messages('append', 5)).slice(3);
  assert.deepEqual(again.map(({ data }) => data), [1, 2]);
  assert.deepEqual(again.map(numbersOf), ['1/0', '1/1']);
  for (const message of again) say(appended(message));
  assert.equal((await outcomes).length, 3);
});

test('a gap in a new epoch is final, and is not sent for ever', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const outcome = assert.rejects(channel.append('a', 0), { code: 'sequence_gap' });
  const { messages, say } = bound(await socket(0));
  say(refusal((await messages('append', 1))[0], 409, 'sequence_gap'));
  await outcome;
});

test('the number of a refused append that may be stored is not used again', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const first = channel.append('a', 'first');
  const second = assert.rejects(channel.append('a', 'second'), { code: 'too_large' });
  const lost = await socket(0);
  // Both are stored, and the responses are lost.
  await lost.messages('append', 2);
  lost.cut();
  const { messages, say } = bound(await socket(1));
  const [one, two] = await messages('append', 2);
  say(refusal(one, 429, 'request_rate', { retryAfter: 1 }), refusal(two, 413, 'too_large'));
  const third = channel.append('a', 'third');
  const used = new Map();
  let seen = 0;
  // The server knows the first two, and takes others by their numbers.
  const answer = async (count) => {
    const all = await messages('append', count);
    for (const message of all.slice(seen)) {
      const known = used.get(numbersOf(message)) ?? message.data;
      assert.equal(message.data, known, `${numbersOf(message)} is the number of one append`);
      used.set(numbersOf(message), message.data);
      if (message.data === 'second') say(refusal(message, 413, 'too_large'));
      else if (message !== one) say(appended(message));
    }
    seen = all.length;
  };
  used.set(numbersOf(one), 'first').set(numbersOf(two), 'second');
  seen = 2;
  // Behind the second, which is refused, the third is refused with it or stored with a number of its own.
  let over = false;
  const outcomes = Promise.allSettled([first, second, third]).finally(() => (over = true));
  while (!over) await Promise.race([answer(seen + 1), outcomes]);
  const [{ status }, , { status: last, reason }] = await outcomes;
  assert.equal(status, 'fulfilled');
  assert.ok(last === 'fulfilled' || reason.code === 'too_large');
  // A later one has a number that no other had.
  const later = channel.append('a', 'later');
  await answer(seen + 1);
  await later;
});

test('a call that waits for an acknowledgement ends with its signal, and those behind it go on', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const { messages, say } = bound(await socket(0));
  const controller = new AbortController();
  const { signal } = controller;
  const waiting = [channel.append('a', 0, { signal }), channel.stop('a', { signal })];
  const last = channel.append('a', 1);
  const sent = await messages('append', 2);
  controller.abort();
  for (const call of waiting) await assert.rejects(call, { name: 'AbortError' });
  await assert.rejects(channel.append('a', 2, { signal }), { name: 'AbortError' });
  await assert.rejects(channel.stop('a', { signal }), { name: 'AbortError' });
  for (const message of sent) say(appended(message));
  await last;
  assert.equal((await messages('append', 2)).length, 2);
  assert.equal(sent[0].signal, undefined);
});

test('a channel keeps nothing of the streams that it has appended to', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const { sent, messages, say } = bound(await socket(0));
  const bytes = await bytesPerStream(async (streams) => {
    const appends = streams.map((stream) => channel.append(stream, 0));
    for (const message of await messages('append', streams.length)) say(appended(message));
    await Promise.all(appends);
    sent.length = 0;
  });
  assert.ok(bytes < 32, `${bytes} bytes for each stream`);
});

test('many appends that are refused by the rate are repeated together', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const outcomes = Promise.all(numbers(100).map((number) => channel.append('a', number)));
  const { messages, say } = bound(await socket(0));
  const first = await messages('append', 100);
  say(...first.map((message) => refusal(message, 429, 'request_rate', { retryAfter: 0.25 })));
  const again = (await messages('append', 200)).slice(100);
  assert.deepEqual(again.map(numbersOf), first.map(numbersOf));
  say(...again.map((message) => appended(message)));
  assert.equal((await outcomes).length, 100);
  assert.equal((await messages('append', 200)).length, 200);
});

test('appends that may be stored are not renumbered when the server knows none before them', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const outcomes = [0, 1, 2].map((number) => channel.append('a', number));
  const lost = await socket(0);
  lost.say(appended((await lost.messages('append', 3))[0]));
  lost.cut();
  const { messages, say } = bound(await socket(1));
  const again = await messages('append', 2);
  assert.deepEqual(again.map(numbersOf), ['0/1', '0/2']);
  for (const message of again) say(refusal(message, 409, 'sequence_gap'));
  await outcomes[0];
  for (const outcome of outcomes.slice(1)) await assert.rejects(outcome, { code: 'sequence_gap', mayBeDone: true });
  const later = channel.append('a', 3);
  const message = (await messages('append', 3)).at(-1);
  assert.equal(numbersOf(message), '1/0');
  say(appended(message));
  await later;
});

test('the error of an append tells whether the append may be stored', TIMEOUT, async () => {
  for (const [end, code] of [[(channel) => channel.close(), 'channel_closed'], [(_, socket) => socket.cut(4403), 'close_4403']]) {
    const { WebSocket, socket } = scripted();
    const channel = open({ WebSocket });
    const first = await socket(0);
    const outcomes = ['refused', 'sent'].map((data) => assert.rejects(channel.append('a', data), { code, mayBeDone: data === 'sent' }));
    const sent = await first.messages('append', 2);
    // The second one may have been stored before the first one is refused; its response is not there.
    first.say(refusal(sent[0], 429, 'request_rate'));
    end(channel, first);
    await Promise.all(outcomes);
  }
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const unsent = assert.rejects(channel.append('a', 1), { code: 'channel_closed', mayBeDone: false });
  channel.close();
  await unsent;
  const other = open({ WebSocket });
  const refused = ['refused', 'lost'].map((stream) => assert.rejects(other.append(stream, 1), { code: 'not_found', mayBeDone: stream === 'lost' }));
  const first = await socket(0);
  const [message] = await first.messages('append', 2);
  first.say(refusal(message, 404, 'not_found'));
  first.cut();
  const second = await socket(1);
  second.say(refusal((await second.messages('append', 1))[0], 404, 'not_found'));
  await Promise.all(refused);
  await assert.rejects(other.append('a', 5n), TypeError);
});

test('an append that is too large is rejected alone', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const subscription = channel.subscribe({ stream: 'other' });
  const [small, large, behind, other] = [['a', 1], ['a', 'x'.repeat(1_000)], ['a', 2], ['other', 'x'.repeat(100)]].map((append) => channel.append(...append));
  const first = await socket(0);
  await first.messages('append', 4);
  const refused = [large, behind].map((outcome) => assert.rejects(outcome, { code: 'close_1009' }));
  first.cut(1009);
  await Promise.all(refused);
  const second = await socket(1);
  const again = await second.messages('append', 2);
  assert.deepEqual(again.map(numbersOf), ['0/0', '1/0']);
  second.say(...again.map((message) => appended(message)));
  await Promise.all([small, other]);
  const [{ id, stream }] = await second.messages('subscribe', 1);
  second.say({ type: 'subscribed', id, stream, offset: '1' });
  await subscription.begun;
  // Nothing is under way that could be too large.
  subscription.closed.catch(() => {});
  second.cut(1009);
  await assert.rejects(channel.append('a', 1), { code: 'close_1009' });
});

test('an append behind one that was too large gets a number of its own', TIMEOUT, async () => {
  const { WebSocket, socket } = scripted();
  const channel = open({ WebSocket });
  const outcomes = ['small', 'x'.repeat(1_000)].map((data) => channel.append('a', data));
  const first = await socket(0);
  await first.messages('append', 2);
  first.cut(1009);
  await assert.rejects(outcomes[1], { code: 'close_1009' });
  const later = channel.append('a', 'later');
  const second = await socket(1);
  const [one, two] = await second.messages('append', 2);
  assert.deepEqual([one, two].map(numbersOf), ['0/0', '0/2']);
  second.say(appended(one), refusal(two, 409, 'sequence_gap'));
  const last = (await second.messages('append', 3)).at(-1);
  assert.deepEqual([last.data, numbersOf(last)], ['later', '1/0']);
  second.say(appended(last));
  await Promise.all([outcomes[0], later]);
});

/** The methods of a scripted socket, to be called alone. */
const bound = (socket) => ({ sent: socket.sent, messages: socket.messages.bind(socket), say: socket.say.bind(socket) });
