// Laravel Echo over pusher-js, unchanged, as a Laravel application uses it: its server is the library `pusher`.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import Echo from 'laravel-echo';
import PusherServer from 'pusher';
import PusherClient from 'pusher-js';
import { Encke } from '../encke.mjs';

const APP = { id: '7', key: 'echo-key', secret: 'a secret of the app 7' };
const CONFIG = `
[[pusher.apps]]
id = "${APP.id}"
key = "${APP.key}"
secret = "${APP.secret}"
client-events = true
`;
/** How long anything may take, on a busy machine. */
const TIMEOUT = { timeout: 300_000 };

const folder = mkdtempSync(join(tmpdir(), 'encke-echo-'));
const config = join(folder, 'encke.toml');
writeFileSync(config, CONFIG);
let encke;
let server;
let endpoint;
const echoes = [];

before(async () => {
  encke = await Encke.start({ data: join(folder, 'data'), args: ['--config', config] });
  const { hostname: host, port } = new URL(encke.url);
  server = new PusherServer({ appId: APP.id, key: APP.key, secret: APP.secret, host, port, useTLS: false });
  // The route `broadcasting/auth` of the application, whose user is in the URL here.
  endpoint = http.createServer(async (request, response) => {
    let body = '';
    for await (const part of request) body += part;
    const form = new URLSearchParams(body);
    const channel = form.get('channel_name');
    const user = new URL(request.url, 'http://localhost').searchParams.get('user');
    if (channel === 'private-forbidden') return response.writeHead(403).end();
    const presence = channel.startsWith('presence-') ? { user_id: user, user_info: { name: user } } : undefined;
    response.setHeader('Content-Type', 'application/json');
    response.end(JSON.stringify(server.authorizeChannel(form.get('socket_id'), channel, presence)));
  });
  endpoint.listen(0, '127.0.0.1');
  await once(endpoint, 'listening');
});

after(async () => {
  for (const echo of echoes) echo.disconnect();
  endpoint?.close();
  await encke?.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** An Echo of a page of that user. */
function connect(user) {
  const { hostname, port } = new URL(encke.url);
  const echo = new Echo({
    broadcaster: 'pusher',
    Pusher: PusherClient,
    key: APP.key,
    cluster: '',
    wsHost: hostname,
    wsPort: Number(port),
    forceTLS: false,
    enabledTransports: ['ws'],
    disableStats: true,
    authEndpoint: `http://127.0.0.1:${endpoint.address().port}/broadcasting/auth?user=${user}`,
  });
  echoes.push(echo);
  return echo;
}

/** Waits until a channel is subscribed. */
function subscribed(channel) {
  return new Promise((resolve) => channel.subscribed(resolve));
}

/** The next event of that name, in the namespace of the application. */
function heard(channel, name) {
  return new Promise((resolve) => channel.listen(name, resolve));
}

test('public and private channels hear what the application broadcasts', TIMEOUT, async () => {
  const echo = connect('ann');
  const [news, orders] = [echo.channel('news'), echo.private('orders')];
  await Promise.all([subscribed(news), subscribed(orders)]);
  const published = heard(news, 'Published');
  const shipped = heard(orders, '.order.shipped');
  await server.trigger('news', 'App\\Events\\Published', { title: 'ä' });
  await server.trigger('private-orders', 'order.shipped', { id: 7 });
  assert.deepEqual(await published, { title: 'ä' });
  assert.deepEqual(await shipped, { id: 7 });
  const forbidden = echo.private('forbidden');
  const refused = await new Promise((resolve) => forbidden.error(resolve));
  assert.equal(refused.status, 403);
  // What a page has caused is not for itself: Laravel names its socket.
  const other = connect('bob').channel('news');
  await subscribed(other);
  const reached = heard(other, 'Caused');
  const own = [];
  news.listen('Caused', (data) => own.push(data));
  await server.trigger('news', 'App\\Events\\Caused', 1, { socket_id: echo.socketId() });
  assert.equal(await reached, 1);
  const last = heard(news, 'Last');
  await server.trigger('news', 'App\\Events\\Last', 2);
  assert.equal(await last, 2);
  assert.deepEqual(own, []);
  echo.leave('news');
  // A subscription is confirmed behind it.
  await subscribed(echo.channel('behind'));
  const left = await server.get({ path: '/channels/news', params: { info: 'subscription_count' } });
  assert.equal((await left.json()).subscription_count, 1);
});

test('presence channels know who is here, who joins and who leaves', TIMEOUT, async () => {
  const [ann, bob] = [connect('ann'), connect('bob')];
  const room = ann.join('room');
  const here = new Promise((resolve) => room.here(resolve));
  assert.deepEqual(await here, [{ name: 'ann' }]);
  const joining = new Promise((resolve) => room.joining(resolve));
  const bobsRoom = bob.join('room');
  const bobsHere = new Promise((resolve) => bobsRoom.here(resolve));
  assert.deepEqual(await joining, { name: 'bob' });
  assert.deepEqual((await bobsHere).map((user) => user.name).sort(), ['ann', 'bob']);
  const whispered = new Promise((resolve) => room.listenForWhisper('typing', resolve));
  bobsRoom.whisper('typing', { on: true });
  assert.deepEqual(await whispered, { on: true });
  const leaving = new Promise((resolve) => room.leaving(resolve));
  bob.leave('room');
  assert.deepEqual(await leaving, { name: 'bob' });
});
