// Tokens that end: the client asks for another one, and misses and repeats nothing.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, subscribe } from '@encke/client';
import { Channel } from '@encke/client/websocket';
import { WebSocket } from 'ws';
import { waitFor } from '../../../tests/web/wait.mjs';
import { Server } from './server.mjs';
import { guarded, token } from './token.mjs';

const TIMEOUT = { timeout: 120_000 };
/** Seconds that a token of these tests lives, on a busy machine. */
const SHORT_S = 10;

let server;
let backend;

before(async () => {
  server = await Server.start(guarded);
  backend = new Client({ base: server.url, token: () => token(600) });
});
after(() => server?.end());

/** A function that returns tokens of which the first has ended, and counts them. */
function ending(first, ...others) {
  const asked = () => token([first, ...others][Math.min(asked.count++, others.length)]);
  asked.count = 0;
  return asked;
}

test('a subscription asks for a token again at 401, and when the token ends', TIMEOUT, async () => {
  const tokens = ending(-60, SHORT_S, 600);
  await backend.create('sse', { data: 0 });
  const messages = [];
  const options = { base: server.url, token: async () => tokens(), stream: 'sse', from: '-1' };
  const subscription = subscribe({ ...options, onRecord: (record) => messages.push(...record.messages) });
  await waitFor('the first message', () => messages.length === 1);
  await waitFor('the token was renewed', () => tokens.count === 3);
  await backend.publish('sse', 1);
  await backend.close('sse', 'done');
  await subscription.closed;
  assert.deepEqual(messages, [0, 1]);
});

test('a publish asks again once, and a token that is never good is refused', TIMEOUT, async () => {
  await backend.create('publish');
  const client = new Client({ base: server.url, token: ending(-60, 600) });
  await client.publish('publish', 0);
  const refused = new Client({ base: server.url, token: ending(-60) });
  await assert.rejects(refused.publish('publish', 1), { status: 401, code: 'expired' });
  await assert.rejects(subscribe({ base: server.url, token: token(-60), stream: 'publish', onRecord() {} }).closed, { status: 401 });
  await assert.rejects(new Client({ base: server.url }).publish('publish', 1), { status: 401 });
});

test('a token that cannot be got is asked for again', TIMEOUT, async () => {
  await backend.create('later', { data: 0 });
  let asked = 0;
  const getToken = async () => {
    asked += 1;
    if (asked < 3) throw new TypeError('the server of tokens is away');
    return token(600);
  };
  for await (const { messages } of subscribe({ base: server.url, token: getToken, stream: 'later', from: '-1' })) {
    assert.deepEqual(messages, [0]);
    break;
  }
});

test('a channel renews its token before it ends, on the same connection', TIMEOUT, async () => {
  await backend.create('channel');
  const tokens = ending(-60, SHORT_S, 600);
  const states = [];
  const channel = new Channel({ base: server.url, WebSocket, token: tokens, onState: (state) => states.push(state) });
  const messages = [];
  channel.subscribe({ stream: 'channel', from: '-1', onRecord: (record) => messages.push(...record.messages) });
  await channel.append('channel', 0);
  const renewed = performance.now();
  await waitFor('the token was renewed', () => tokens.count === 3 && performance.now() - renewed > SHORT_S * 1000 + 500);
  await channel.append('channel', 1);
  await waitFor('both messages', () => messages.length === 2);
  assert.deepEqual(messages, [0, 1]);
  // The first token was refused, and the connection with it.
  assert.deepEqual(states, ['away', 'live']);
  channel.close();
});

test('a channel whose token ends connects again with another one, and is refused without', TIMEOUT, async () => {
  await backend.create('fixed', { data: 0 });
  const fixed = new Channel({ base: server.url, WebSocket, token: token(SHORT_S) });
  const { closed } = fixed.subscribe({ stream: 'fixed', onRecord() {} });
  await assert.rejects(closed, { code: 'close_4401' });
  const refused = new Channel({ base: server.url, WebSocket, token: () => token(-60) });
  await assert.rejects(refused.append('fixed', 1), { status: 401, code: 'expired' });
});
