// Clients of pusher-js that were away have each event once and in order: over disconnects, kills of the server, and with others beside them
// that do not know of it.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { GAP, replay } from '@encke/pusher-replay';
import PusherServer from 'pusher';
import PusherClient from 'pusher-js';
import { Encke } from '../../../tests/web/encke.mjs';
import { fixedAddress } from '../../../tests/web/ports.mjs';
import { waitFor } from '../../../tests/web/wait.mjs';

const TIMEOUT = { timeout: 300_000 };
const app = (id, more) => `[[pusher.apps]]\nid = "${id}"\nkey = "key-${id}"\nsecret = "a secret of the app ${id}"\n${more}\n`;
const folder = mkdtempSync(join(tmpdir(), 'encke-replay-'));
const config = join(folder, 'encke.toml');
writeFileSync(config, app('1', '') + app('2', 'retention = "records=5"'));
const data = join(folder, 'data');

let encke;
const clients = [];

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress(), args: ['--config', config] });
});
after(async () => {
  for (const client of clients) client.disconnect();
  await encke?.stop();
  rmSync(folder, { recursive: true });
});

const server = (id) => {
  const { hostname: host, port } = new URL(encke.url);
  const key = Buffer.alloc(32, 7).toString('base64');
  return new PusherServer({ appId: id, key: `key-${id}`, secret: `a secret of the app ${id}`, host, port, useTLS: false, encryptionMasterKeyBase64: key });
};

/** A client, and what it gets of a channel: the data of the events `e`, and gaps. */
function follow(id, channel, wrap = replay) {
  const { hostname: wsHost, port: wsPort } = new URL(encke.url);
  const user = { user_id: `user-${clients.length}` };
  const customHandler = ({ socketId, channelName }, done) =>
    done(null, server(id).authorizeChannel(socketId, channelName, channelName.startsWith('presence-') ? user : undefined));
  const options = { cluster: '', wsHost, wsPort, forceTLS: false, enabledTransports: ['ws'], channelAuthorization: { customHandler } };
  const client = wrap(new PusherClient(`key-${id}`, options));
  clients.push(client);
  const got = [];
  const subscription = client.subscribe(channel);
  subscription.bind('e', ({ number }) => got.push(number));
  subscription.bind(GAP, () => got.push('gap'));
  return { client, subscription, got };
}

const isThere = ({ subscription }) => waitFor('it is subscribed', () => subscription.subscribed);
const numbers = (from, to) => Array.from({ length: to - from }, (_, index) => from + index);
const trigger = async (id, channel, from, to) => {
  for (const number of numbers(from, to)) await server(id).trigger(channel, 'e', { number });
};

for (const channel of ['news', 'private-news', 'presence-news', 'private-encrypted-news', 'cache-news']) {
  test(`a client of ${channel} that was away has each event once and in order`, TIMEOUT, async () => {
    const away = follow('1', channel);
    const plain = follow('1', channel, (client) => client);
    for (const one of [away, plain]) await isThere(one);
    await trigger('1', channel, 0, 3);
    await waitFor('both have three', () => away.got.length === 3 && plain.got.length === 3);
    for (const from of [3, 103]) {
      away.client.disconnect();
      await trigger('1', channel, from, from + 100);
      away.client.connect();
      await waitFor('it has what it has missed', () => away.got.length === from + 100);
    }
    assert.deepEqual(away.got, numbers(0, 203));
    await waitFor('the other one has it, too', () => plain.got.length >= 203);
    assert.deepEqual(plain.got, numbers(0, 203), 'the other one was there all the time');
  });
}

test('a client has each event once and in order over kills of the server', TIMEOUT, async () => {
  const one = follow('1', 'killed');
  await isThere(one);
  await trigger('1', 'killed', 0, 1);
  for (let round = 0; round < 3; round++) {
    const from = 1 + round * 50;
    const address = new URL(encke.url).host;
    await encke.kill();
    encke = await Encke.start({ data, listen: address, args: ['--config', config] });
    await trigger('1', 'killed', from, from + 50);
    await waitFor('it has all of the round', () => one.got.length >= from + 50);
  }
  assert.deepEqual(one.got, numbers(0, 151));
});

test('a client is told that something is lost, and gets what is left', TIMEOUT, async () => {
  const one = follow('2', 'short');
  await isThere(one);
  await trigger('2', 'short', 0, 1);
  await waitFor('it has the first one', () => one.got.length === 1);
  one.client.disconnect();
  await trigger('2', 'short', 1, 60);
  one.client.connect();
  await waitFor('it has the last one', () => one.got.at(-1) === 59);
  const [first, gap, ...rest] = one.got;
  assert.deepEqual([first, gap], [0, 'gap']);
  assert.ok(rest.length >= 5 && rest.length < 59, `${rest.length} are left`);
  assert.deepEqual(rest, numbers(60 - rest.length, 60));
});

test('an event whose handler throws does not come again', TIMEOUT, async () => {
  const one = follow('1', 'thrown');
  await isThere(one);
  one.subscription.bind('e', () => {
    throw new Error('a mistake of the page');
  });
  // In a browser the page goes on.
  const { socket } = one.client.connection.connection.transport;
  const { onmessage } = socket;
  let mistakes = 0;
  socket.onmessage = (message) => {
    try {
      onmessage(message);
    } catch {
      mistakes += 1;
    }
  };
  await trigger('1', 'thrown', 0, 2);
  await waitFor('it has made two mistakes', () => mistakes === 2);
  one.client.disconnect();
  one.subscription.unbind('e');
  one.subscription.bind('e', ({ number }) => one.got.push(number));
  await trigger('1', 'thrown', 2, 3);
  one.client.connect();
  await waitFor('it has what it has missed', () => one.got.includes(2));
  assert.deepEqual(one.got, [0, 1, 2]);
});

test('who leaves a channel while it is away begins anew', TIMEOUT, async () => {
  const one = follow('1', 'away');
  await isThere(one);
  await trigger('1', 'away', 0, 1);
  await waitFor('it has the first one', () => one.got.length === 1);
  one.client.disconnect();
  one.client.unsubscribe('away');
  await trigger('1', 'away', 1, 5);
  one.client.connect();
  const again = one.client.subscribe('away');
  again.bind('e', ({ number }) => one.got.push(number));
  await waitFor('it is subscribed', () => again.subscribed);
  await trigger('1', 'away', 5, 6);
  await waitFor('it has the last one', () => one.got.includes(5));
  assert.deepEqual(one.got, [0, 5]);
});

for (const isAway of [true, false]) {
  test(`a channel's own unsubscribe leaves it: it begins anew${isAway ? ' behind an absence' : ''}`, TIMEOUT, async () => {
    const name = `own-${isAway}`;
    const one = follow('1', name);
    await isThere(one);
    await trigger('1', name, 0, 1);
    await waitFor('it has the first one', () => one.got.length === 1);
    if (isAway) one.client.disconnect();
    one.subscription.unsubscribe();
    await waitFor('the server knows', async () => (await (await server('1').get({ path: `/channels/${name}` })).json()).occupied === false);
    await trigger('1', name, 1, 5);
    // The client subscribes to it again when it connects, because it is still in its list.
    if (isAway) one.client.connect();
    else one.subscription.subscribe();
    await isThere(one);
    await trigger('1', name, 5, 6);
    await waitFor('it has the last one', () => one.got.includes(5));
    assert.deepEqual(one.got, [0, 5]);
  });
}

test('who leaves a channel and enters it again begins anew', TIMEOUT, async () => {
  const one = follow('1', 'left');
  await isThere(one);
  await trigger('1', 'left', 0, 1);
  await waitFor('it has the first one', () => one.got.length === 1);
  one.client.unsubscribe('left');
  await trigger('1', 'left', 1, 5);
  const again = one.client.subscribe('left');
  again.bind('e', ({ number }) => one.got.push(number));
  await waitFor('it is subscribed', () => again.subscribed);
  await trigger('1', 'left', 5, 6);
  await waitFor('it has the last one', () => one.got.includes(5));
  assert.deepEqual(one.got, [0, 5]);
});
