// What the libraries of Pusher are told beside events, unchanged: servers by webhooks, pages of numbers of subscriptions and of users.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import PusherServer from 'pusher';
import PusherClient from 'pusher-js';
import { Encke } from '../encke.mjs';
import { waitFor } from '../wait.mjs';

const APP = { appId: '32', key: 'app-key', secret: 'a secret of the app 32' };
/** How long anything may take, on a busy machine. */
const TIMEOUT = { timeout: 300_000 };
const folder = mkdtempSync(join(tmpdir(), 'encke-pusher-reports-'));
const clients = [];
/** What the receiver was told, and calls that the library has not taken for Pusher's. */
const [told, refused] = [[], []];
let [encke, receiver, server] = [];

before(async () => {
  receiver = http.createServer(async (request, response) => {
    let rawBody = '';
    for await (const part of request) rawBody += part;
    const webhook = server.webhook({ headers: request.headers, rawBody });
    if (webhook.isValid()) told.push(...webhook.getEvents());
    else refused.push(rawBody);
    response.end('{}');
  });
  receiver.listen(0, '127.0.0.1');
  await once(receiver, 'listening');
  const config = join(folder, 'encke.toml');
  writeFileSync(
    config,
    `[[pusher.apps]]
id = "${APP.appId}"
key = "${APP.key}"
secret = "${APP.secret}"
subscription-count = true
watchlists = true

[[pusher.apps.webhooks]]
url = "http://127.0.0.1:${receiver.address().port}/hook"
events = ["channel_occupied", "channel_vacated", "member_added", "member_removed"]
`,
  );
  encke = await Encke.start({ data: join(folder, 'data'), args: ['--config', config] });
  const { hostname: host, port } = new URL(encke.url);
  server = new PusherServer({ ...APP, host, port, useTLS: false });
});

after(async () => {
  for (const client of clients) client.disconnect();
  receiver?.close();
  await encke?.stop();
  rmSync(folder, { recursive: true, force: true });
});

/** A client of a user, who watches others. */
function connect(id = 'ann', watchlist = []) {
  const { hostname: wsHost, port: wsPort } = new URL(encke.url);
  const client = new PusherClient(APP.key, {
    cluster: '',
    wsHost,
    wsPort,
    forceTLS: false,
    enabledTransports: ['ws'],
    channelAuthorization: { customHandler: ({ socketId, channelName }, done) => done(null, server.authorizeChannel(socketId, channelName, { user_id: id })) },
    userAuthentication: { customHandler: ({ socketId }, done) => done(null, server.authenticateUser(socketId, { id, watchlist })) },
  });
  clients.push(client);
  return client;
}

test('a server is told what happens to channels, and its library takes the calls', TIMEOUT, async () => {
  const [ann, bob] = [connect('ann'), connect('bob')];
  ann.subscribe('news');
  bob.subscribe('presence-room');
  await waitFor('the begin is told', () => told.length === 3);
  bob.disconnect();
  await waitFor('the end is told', () => told.length === 5);
  const events = told.map(({ name, channel, user_id: user }) => [name, channel, user].filter(Boolean).join(' '));
  const begun = ['channel_occupied news', 'channel_occupied presence-room', 'member_added presence-room bob'];
  assert.deepEqual(events.slice(0, 3).sort(), begun);
  assert.deepEqual(events.slice(3), ['member_removed presence-room bob', 'channel_vacated presence-room']);
  assert.deepEqual(refused, []);
});

test('a page knows how many are subscribed', TIMEOUT, async () => {
  const channel = connect().subscribe('counted');
  const counts = [];
  channel.bind('pusher:subscription_count', ({ subscription_count: count }) => counts.push(count));
  await waitFor('it counts itself', () => counts.at(-1) === 1);
  const other = connect();
  other.subscribe('counted');
  await waitFor('it counts the other one', () => counts.at(-1) === 2);
  assert.equal(channel.subscriptionCount, 2);
  other.disconnect();
  await waitFor('it counts itself again', () => counts.at(-1) === 1);
});

test('a user is told of those on its watchlist', TIMEOUT, async () => {
  const ann = connect('ann', ['bob', 'cid']);
  const events = [];
  for (const name of ['online', 'offline']) ann.user.watchlist.bind(name, ({ user_ids: users }) => events.push(`${name} ${users}`));
  ann.signin();
  await waitFor('it has signed in', () => ann.user.user_data?.id === 'ann');
  const bob = connect('bob');
  bob.signin();
  await waitFor('bob is there', () => events.includes('online bob'));
  const eve = connect('eve');
  eve.signin();
  await waitFor('eve is there', () => eve.user.user_data?.id === 'eve');
  bob.disconnect();
  await waitFor('bob is gone', () => events.includes('offline bob'));
  assert.deepEqual(events, ['online bob', 'offline bob']);
});
