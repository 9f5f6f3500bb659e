// Channels over WebSocket, in Node: subscriptions that come and go, and appends, each once over kill -9 and SIGTERM.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Channel, EnckeError } from '@encke/client/websocket';
import { WebSocket } from 'ws';
import { waitFor } from '../../../tests/web/wait.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

let server;

before(async () => {
  server = await Server.start();
});
after(async () => {
  for (const channel of channels) channel.close();
  await server?.end();
});

const channels = [];
function open(options) {
  const channel = new Channel({ base: server.url, WebSocket, ...options });
  channels.push(channel);
  return channel;
}

/** A subscription of a channel, and the messages that came to it. */
function follow(channel, options) {
  const messages = [];
  const onRecord = (record) => messages.push(...record.messages);
  const subscription = channel.subscribe({ from: '-1', onRecord, ...options });
  return { subscription, messages, has: (count) => waitFor(`${count} messages`, () => messages.length >= count) };
}

test('appends and records, each once and in order, over kill -9 and SIGTERM', TIMEOUT, async () => {
  const [a, b] = ['cuts/a', 'cuts/b'];
  for (const stream of [a, b]) await server.create(stream);
  const channel = open();
  const [one, list, pattern] = [{ stream: a }, { streams: [b, a] }, { stream: 'cuts/**' }].map((options) => follow(channel, options));
  const appends = [];
  let acknowledged = 0;
  const appendSome = (count) => {
    for (let sent = 0; sent < count; sent += 1) {
      const number = Math.floor(appends.length / 2);
      const append = channel.append(appends.length % 2 ? b : a, number).then(() => (acknowledged += 1));
      appends.push(append);
    }
  };
  for (const how of ['kill', 'stop', 'kill']) {
    appendSome(60);
    await waitFor('some are acknowledged', () => acknowledged > appends.length - 50);
    await server.restart(how, how === 'stop' ? undefined : async () => appendSome(20));
  }
  await Promise.all(appends);
  const each = appends.length / 2;
  for (const stream of [a, b]) assert.deepEqual(await server.read(stream), numbers(each), `each append to ${stream} is stored once`);
  await one.has(each);
  for (const { has } of [list, pattern]) await has(2 * each);
  assert.deepEqual(one.messages, numbers(each));
  assert.deepEqual(list.messages, pattern.messages);
  assert.deepEqual(list.messages.toSorted((x, y) => x - y), numbers(each).flatMap((number) => [number, number]));
  await server.close(a);
  await one.subscription.closed;
  assert.equal(one.subscription.endReason, 'done');
  channel.close();
  await pattern.subscription.closed;
});

test('streams come and go on one connection, and a name can come again', TIMEOUT, async () => {
  for (const stream of ['come', 'go']) await server.create(stream);
  const accepted = await server.metric('encke_connections_accepted_total');
  const channel = open();
  const first = follow(channel, { stream: 'come' });
  await channel.append('come', [0, 1]);
  await first.has(2);
  assert.throws(() => channel.subscribe({ stream: 'come' }), { code: 'already_subscribed' });
  first.subscription.close();
  const again = follow(channel, { stream: 'come', from: undefined, last: 1 });
  const other = follow(channel, { stream: 'go' });
  assert.equal(await other.subscription.begun, '0000000000000000_0000000000000000');
  await channel.append('come', 2);
  await channel.append('go', { text: 'here' });
  await again.has(2);
  await other.has(1);
  assert.deepEqual([first.messages, again.messages, other.messages], [[0, 1], [1, 2], [{ text: 'here' }]]);
  assert.equal(await server.metric('encke_connections_accepted_total'), accepted + 1);
  const iterated = [];
  other.subscription.close();
  for await (const { messages } of channel.subscribe({ stream: 'go', from: '-1', times: true })) {
    iterated.push(...messages);
    if (iterated.length === 2) break;
    await channel.append('go', 'more');
  }
  assert.deepEqual(iterated, [{ text: 'here' }, 'more']);
  channel.close();
});

test('a refused append refuses those behind it, and later ones are stored', TIMEOUT, async () => {
  await server.create('refused');
  const channel = open();
  await channel.append('refused', 0);
  const text = { text: true }; // The stream has JSON, and this is none.
  const outcomes = await Promise.allSettled([channel.append('refused', 1), channel.append('refused', 'no JSON', text), channel.append('refused', 3)]);
  assert.deepEqual(outcomes.map(({ status }) => status), ['fulfilled', 'rejected', 'rejected']);
  assert.ok(outcomes[1].reason instanceof EnckeError);
  assert.equal(outcomes[1].reason.status, 400);
  assert.equal(outcomes[2].reason, outcomes[1].reason);
  await channel.append('refused', 4);
  assert.deepEqual(await server.read('refused'), [0, 1, 4]);
  await channel.stop('refused');
  assert.equal((await channel.append('refused', 5, { close: true, endReason: 'stopped' })).closed, true);
  await assert.rejects(channel.append('refused', 6), { status: 409, code: 'closed' });
  const missing = channel.subscribe({ stream: 'missing' });
  await assert.rejects(async () => {
    for await (const _ of missing);
  }, { status: 404, code: 'not_found' });
  channel.close();
  await assert.rejects(channel.append('refused', 7), { code: 'channel_closed' });
  assert.throws(() => channel.subscribe({ stream: 'refused' }), { code: 'channel_closed' });
});

test('a stream that ends while the client is away', TIMEOUT, async () => {
  for (const stream of ['ends', 'ends-too']) {
    await server.create(stream);
    await server.append(stream, 0);
  }
  const channel = open();
  const one = follow(channel, { stream: 'ends' });
  const list = follow(channel, { streams: ['ends', 'ends-too'] });
  await one.has(1);
  await list.has(2);
  await server.restart('kill', async () => {
    await server.append('ends', 1);
    await server.close('ends');
    await server.delete('ends-too');
  });
  await one.subscription.closed;
  await list.subscription.closed;
  assert.deepEqual([one.messages, list.messages], [[0, 1], [0, 0, 1]]);
  assert.equal(list.subscription.ends.get('ends-too').why, 'deleted');
  channel.close();
});

test('an acknowledgement that comes before the record does not move a subscription', TIMEOUT, async () => {
  let socket;
  const sent = [];
  class Scripted {
    constructor() {
      socket = this;
      setImmediate(() => this.onopen());
    }
    send(text) {
      sent.push(JSON.parse(text));
    }
    close() {}
  }
  const say = (message) => socket.onmessage({ data: JSON.stringify(message) });
  const channel = open({ WebSocket: Scripted });
  const { subscription } = follow(channel, { stream: 'a' });
  const appended = channel.append('a', 1);
  await waitFor('both are sent', () => sent.length === 2);
  say({ type: 'subscribed', id: sent[0].id, stream: 'a', offset: '1' });
  say({ type: 'appended', id: sent[1].id, stream: 'a', offset: '2' });
  assert.equal((await appended).offset, '2');
  socket.onclose({ code: 1006 });
  await waitFor('it subscribes again', () => sent.length === 3);
  assert.equal(sent[2].offset, '1');
  assert.equal(subscription.position, '1');
});
