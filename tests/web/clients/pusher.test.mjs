// The Pusher protocol by the libraries of Pusher, unchanged: pusher-js as client, pusher as server.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import PusherServer from 'pusher';
import PusherClient from 'pusher-js';
import nacl from 'tweetnacl';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';

const APP = { id: '31', key: 'app-key', secret: 'a secret of the app 31' };
const CONFIG = `
[[pusher.apps]]
id = "${APP.id}"
key = "${APP.key}"
secret = "${APP.secret}"
client-events = true
`;
/** How long anything may take, on a busy machine. */
const TIMEOUT = { timeout: 300_000 };

const folder = mkdtempSync(join(tmpdir(), 'encke-pusher-'));
const config = join(folder, 'encke.toml');
writeFileSync(config, CONFIG);
let encke;
/** The library of a server, and the endpoint that authorises the clients of its users. */
let server;
let endpoint;
const clients = [];

before(async () => {
  encke = await Encke.start({ data: join(folder, 'data'), listen: await fixedAddress(), args: ['--config', config] });
  const { hostname: host, port } = new URL(encke.url);
  server = new PusherServer({
    appId: APP.id,
    key: APP.key,
    secret: APP.secret,
    host,
    port,
    useTLS: false,
    encryptionMasterKeyBase64: Buffer.alloc(32, 7).toString('base64'),
  });
  endpoint = http.createServer(async (request, response) => {
    let body = '';
    for await (const part of request) body += part;
    const form = new URLSearchParams(body);
    if (request.url.startsWith('/user')) {
      const id = new URL(request.url, 'http://localhost').searchParams.get('user');
      const auth = server.authenticateUser(form.get('socket_id'), { id, user_info: { name: id } });
      response.setHeader('Content-Type', 'application/json');
      return response.end(JSON.stringify(auth));
    }
    const channel = form.get('channel_name');
    if (channel === 'private-forbidden') return response.writeHead(403).end();
    const signed = channel === 'private-forged' ? 'private-other' : channel;
    // The page says who it is; a real endpoint knows its user.
    const user = new URL(request.url, 'http://localhost').searchParams.get('user');
    // A client that has signed in needs no further data.
    const needsData = channel.startsWith('presence-') && channel !== 'presence-users';
    const presence = needsData ? { user_id: user, user_info: { name: user.toUpperCase() } } : undefined;
    const auth = server.authorizeChannel(form.get('socket_id'), signed, presence);
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify(auth));
  });
  endpoint.listen(0, '127.0.0.1');
  await once(endpoint, 'listening');
});

after(async () => {
  for (const client of clients) client.disconnect();
  endpoint?.close();
  await encke?.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** A client that connects; `options` are those of pusher-js. */
function connect(options = {}) {
  const { hostname, port } = new URL(encke.url);
  const client = new PusherClient(options.key ?? APP.key, {
    cluster: '',
    wsHost: hostname,
    wsPort: port,
    forceTLS: false,
    disableStats: true,
    enabledTransports: ['ws'],
    channelAuthorization: {
      transport: 'ajax',
      endpoint: `http://127.0.0.1:${endpoint.address().port}/auth?user=${options.user ?? ''}`,
    },
    userAuthentication: {
      transport: 'ajax',
      endpoint: `http://127.0.0.1:${endpoint.address().port}/user?user=${options.user ?? ''}`,
    },
    nacl,
    ...options,
  });
  clients.push(client);
  return client;
}

/** What follows on a channel or a connection: the next event of that name. */
function next(target, name) {
  return new Promise((resolve) => {
    const take = (data) => {
      target.unbind(name, take);
      resolve(data);
    };
    target.bind(name, take);
  });
}

/** Subscribes, and waits until that is confirmed. */
async function subscribe(client, name) {
  const channel = client.subscribe(name);
  await next(channel, 'pusher:subscription_succeeded');
  return channel;
}

test('a client connects, and gets the events of its channels', TIMEOUT, async () => {
  const client = connect();
  const { socket_id: socket } = await next(client.connection, 'connected');
  assert.match(socket, /^\d+\.\d+$/);
  assert.equal(client.connection.socket_id, socket);
  const [news, sports] = [await subscribe(client, 'news'), await subscribe(client, 'sports')];
  const said = [next(news, 'said'), next(sports, 'said')];
  const response = await server.trigger(['news', 'sports'], 'said', { text: 'hello ä' });
  assert.deepEqual(await response.json(), {});
  assert.deepEqual(await Promise.all(said), [{ text: 'hello ä' }, { text: 'hello ä' }]);
  const batched = [next(news, 'one'), next(sports, 'two')];
  await server.triggerBatch([
    { channel: 'news', name: 'one', data: { n: 1 } },
    { channel: 'sports', name: 'two', data: 'text' },
  ]);
  assert.deepEqual(await Promise.all(batched), [{ n: 1 }, 'text']);
  client.unsubscribe('sports');
  // A subscription is confirmed behind it.
  await subscribe(client, 'other');
  const left = await server.get({ path: '/channels', params: { filter_by_prefix: 'sports' } });
  assert.deepEqual(await left.json(), { channels: {} });
  const one = await server.get({ path: '/channels/news', params: { info: 'subscription_count' } });
  assert.deepEqual(await one.json(), { occupied: true, subscription_count: 1 });
  client.disconnect();
});

test('who causes an event does not get it', TIMEOUT, async () => {
  const [causer, other] = [connect(), connect()];
  const [mine, theirs] = [await subscribe(causer, 'room'), await subscribe(other, 'room')];
  const seen = [];
  mine.bind('said', (data) => seen.push(data));
  const reached = next(theirs, 'said');
  await server.trigger('room', 'said', 1, { socket_id: causer.connection.socket_id });
  assert.equal(await reached, 1);
  const both = next(mine, 'said');
  await server.trigger('room', 'said', 2);
  assert.equal(await both, 2);
  assert.deepEqual(seen, [2]);
});

test('private channels are authorised by the endpoint of the user', TIMEOUT, async () => {
  const client = connect();
  const channel = await subscribe(client, 'private-orders');
  const placed = next(channel, 'placed');
  await server.trigger('private-orders', 'placed', { id: 7 });
  assert.deepEqual(await placed, { id: 7 });
  for (const name of ['private-forbidden', 'private-forged']) {
    const refused = client.subscribe(name);
    const error = await next(refused, 'pusher:subscription_error');
    assert.equal(error.type, 'AuthError', name);
    assert.equal(refused.subscribed, false);
  }
});

test('encrypted channels reach clients with the key', TIMEOUT, async () => {
  const client = connect();
  const channel = await subscribe(client, 'private-encrypted-notes');
  const noted = next(channel, 'noted');
  await server.trigger('private-encrypted-notes', 'noted', { secret: 'words' });
  assert.deepEqual(await noted, { secret: 'words' });
  const stored = await fetch(`${encke.url}/v1/stream/app/${APP.id}/private-encrypted-notes`);
  assert.ok(!(await stored.text()).includes('words'));
});

test('presence channels know who is there', TIMEOUT, async () => {
  const [ann, bob] = [connect({ user: 'ann' }), connect({ user: 'bob' })];
  const annsRoom = await subscribe(ann, 'presence-room');
  assert.equal(annsRoom.members.count, 1);
  assert.deepEqual(annsRoom.members.me, { id: 'ann', info: { name: 'ANN' } });
  const added = next(annsRoom, 'pusher:member_added');
  const bobsRoom = await subscribe(bob, 'presence-room');
  assert.deepEqual(await added, { id: 'bob', info: { name: 'BOB' } });
  assert.equal(bobsRoom.members.count, 2);
  assert.equal(bobsRoom.members.get('ann').info.name, 'ANN');
  // A second page of the same user is no event.
  const page = connect({ user: 'bob' });
  await subscribe(page, 'presence-room');
  const users = await server.get({ path: '/channels/presence-room/users' });
  assert.deepEqual(await users.json(), { users: [{ id: 'ann' }, { id: 'bob' }] });
  const typed = new Promise((resolve) => {
    annsRoom.bind('client-typing', (data, metadata) => resolve([data, metadata.user_id]));
  });
  assert.ok(bobsRoom.trigger('client-typing', { on: true }));
  assert.deepEqual(await typed, [{ on: true }, 'bob']);
  const removed = next(annsRoom, 'pusher:member_removed');
  page.disconnect();
  bob.disconnect();
  assert.deepEqual(await removed, { id: 'bob', info: { name: 'BOB' } });
  assert.equal(annsRoom.members.count, 1);
});

test('a user who has signed in gets events of its own, and can be sent away', TIMEOUT, async () => {
  const [ann, bob] = [connect({ user: 'ann' }), connect({ user: 'bob' })];
  for (const client of [ann, bob]) {
    client.signin();
    await next(client, 'pusher:signin_success');
  }
  assert.equal(ann.user.user_data.id, 'ann');
  const room = await subscribe(ann, 'presence-users');
  assert.deepEqual(room.members.me, { id: 'ann', info: { name: 'ann' } });
  const others = [];
  bob.user.bind('invited', (data) => others.push(data));
  const invited = new Promise((resolve) => ann.user.bind('invited', resolve));
  await server.sendToUser('ann', 'invited', { to: 'party' });
  assert.deepEqual(await invited, { to: 'party' });
  const told = new Promise((resolve) => bob.user.bind('told', resolve));
  await server.sendToUser('bob', 'told', 1);
  assert.equal(await told, 1);
  assert.deepEqual(others, []);
  const closed = next(ann.connection, 'disconnected');
  await server.terminateUserConnections('ann');
  await closed;
  assert.equal(bob.connection.state, 'connected');
});

test('cache channels begin with their last event', TIMEOUT, async () => {
  const first = connect();
  const channel = first.subscribe('cache-price');
  await next(channel, 'pusher:cache_miss');
  const change = next(channel, 'price');
  await server.trigger('cache-price', 'price', 1);
  assert.equal(await change, 1);
  const late = connect().subscribe('cache-price');
  assert.equal(await next(late, 'price'), 1);
  const told = await server.get({ path: '/channels/cache-price', params: { info: 'cache' } });
  assert.deepEqual(await told.json(), { occupied: true, cache: { data: '1' } });
});

test('a client with an unknown key is refused, and does not come back', TIMEOUT, async () => {
  const client = connect({ key: 'unknown' });
  const error = await next(client.connection, 'error');
  assert.equal(error.error.data.code, 4001);
  assert.equal(client.connection.state, 'disconnected');
});

test('a server with another secret is refused with a reason', TIMEOUT, async () => {
  const { hostname: host, port } = new URL(encke.url);
  const other = new PusherServer({ appId: APP.id, key: APP.key, secret: 'another secret', host, port, useTLS: false });
  await assert.rejects(other.trigger('news', 'said', {}), (error) => {
    assert.equal(error.status, 401);
    assert.match(error.body, /auth_signature/);
    return true;
  });
});

test('clients come back to a server that starts again, and go on', TIMEOUT, async () => {
  const client = connect();
  const channel = await subscribe(client, 'news');
  const before = client.connection.socket_id;
  const again = next(channel, 'pusher:subscription_succeeded');
  await encke.stop();
  const listen = new URL(encke.url).host;
  encke = await Encke.start({ data: join(folder, 'data'), listen, args: ['--config', config] });
  await again;
  assert.notEqual(client.connection.socket_id, before);
  const said = next(channel, 'said');
  await server.trigger('news', 'said', 'again');
  assert.equal(await said, 'again');
});
