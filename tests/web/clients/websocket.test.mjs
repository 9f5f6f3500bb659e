// WebSockets of the package ws: subscriptions and appends, tokens and their renewal, refusals, frames, and every record once over kill -9.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { SignJWT } from 'jose';
import WebSocket from 'ws';
import { selfSigned } from '../certificate.mjs';
import { Load } from '../channel-client.mjs';
import { LOAD, append, create, everyRecordOnceOverCuts, read } from '../cuts.mjs';
import { Encke } from '../encke.mjs';

const EVENTS = '/v1/events';
const BODY_BYTES_MAX = 64 * 1024;
/** How long anything may take, on a busy machine. */
const TIMEOUT = { timeout: 300_000 };
const SECRET = 'a secret of more than thirty-two bytes, for tests';
const ACCESS = `
[access]
leeway = "0s"

[[access.issuers]]
name = "app"
issuer = "https://app.example"
audience = "encke"
algorithms = ["HS256"]
secret = "${SECRET}"
`;

const folder = mkdtempSync(join(tmpdir(), 'encke-websocket-'));
const certificate = selfSigned(folder);
const config = join(folder, 'encke.toml');
writeFileSync(config, ACCESS);
/** Servers without and with access control. */
let encke;
let guarded;

before(async () => {
  encke = await Encke.start({ data: join(folder, 'open'), args: ['--body-max', `${BODY_BYTES_MAX}`] });
  guarded = await Encke.start({ data: join(folder, 'guarded'), args: ['--config', config, '--admin-listen', 'none'] });
});

after(async () => {
  await encke?.stop();
  await guarded?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const webSocketUrl = (url, path = EVENTS) => url.replace('http', 'ws') + path;

/** A connection whose messages are awaited in order. */
class Client {
  #messages = [];
  #waiting;
  #closed;

  /** Opens a connection; `options` are those of ws. */
  static async open({ url }, { path, protocols = ['encke.v1'], ...options } = {}) {
    const client = new Client(new WebSocket(webSocketUrl(url, path), protocols, options));
    await once(client.socket, 'open');
    return client;
  }

  /** Opens a connection that must be refused; returns the status and the code of the error. */
  static async refused({ url }, { path, protocols = ['encke.v1'], ...options } = {}) {
    const socket = new WebSocket(webSocketUrl(url, path), protocols, options);
    const [, response] = await once(socket, 'unexpected-response');
    const body = JSON.parse((await response.setEncoding('utf8').toArray()).join(''));
    return [response.statusCode, body.error.code];
  }

  constructor(socket) {
    this.socket = socket;
    this.#closed = new Promise((resolve) => socket.once('close', (code) => resolve(code)));
    socket.on('message', (text) => {
      this.#messages.push(JSON.parse(text));
      this.#waiting?.();
    });
    void this.#closed.then(() => this.#waiting?.());
  }

  send(message) {
    this.socket.send(JSON.stringify(message));
  }

  /** The next message that has these members; those before it are dropped. */
  async message(members) {
    for (;;) {
      while (this.#messages.length > 0) {
        const message = this.#messages.shift();
        if (Object.entries(members).every(([name, value]) => message[name] === value)) return message;
      }
      if (this.socket.readyState === WebSocket.CLOSED) throw new Error(`closed without ${JSON.stringify(members)}`);
      await new Promise((resolve) => (this.#waiting = resolve));
    }
  }

  /** Sends a message with an id, and returns its response. */
  ask(id, message) {
    this.send({ ...message, id });
    return this.message({ id });
  }

  /** The close code, when the connection is closed. */
  get closed() {
    return this.#closed;
  }

  end() {
    this.socket.terminate();
  }
}

/** A token that ends after some seconds. */
const sign = (seconds, grants = { create: ['/v1/stream/**'], read: ['/v1/stream/**'], append: ['/v1/stream/**'] }) =>
  new SignJWT({ iss: 'https://app.example', aud: 'encke', sub: 'ann', encke: grants })
    .setProtectedHeader({ alg: 'HS256' })
    .setExpirationTime(Math.floor(Date.now() / 1000) + seconds)
    .sign(Buffer.from(SECRET));

/** A token as a subprotocol. */
const protocolOf = (token) => `encke.token.${Buffer.from(token).toString('base64url')}`;

/** Creates a stream of the server with access control, with the message 1. */
async function createGuarded(stream) {
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${await sign(600)}` };
  const { status, body } = await guarded.request('PUT', `/v1/stream/${stream}`, { headers, body: '[1]' });
  assert.equal(status, 201, body);
}

const subscribe = (stream) => ({ type: 'subscribe', stream, offset: '-1' });
const isRefused = (message, status, code) => assert.deepEqual([message.type, message.status, message.code], ['error', status, code]);

test('subscriptions to a stream, a pattern and a list of one connection get its appends', TIMEOUT, async () => {
  await create(encke, 'chat/1', 'chat/2');
  const client = await Client.open(encke);
  assert.equal(client.socket.protocol, 'encke.v1');
  const [stream, pattern, list] = ['chat/1', 'chat/**', 'chat/2,chat/1'];
  const got = { [stream]: [], [pattern]: [], [list]: [] };
  client.socket.on('message', (text) => {
    const message = JSON.parse(text);
    if (message.type === 'records') got[message.subscription ?? message.stream].push(...message.data);
  });
  const subjects = [{ stream }, { stream: pattern }, { streams: list.split(',') }];
  for (const [id, subject] of subjects.entries()) {
    const response = await client.ask(id, { type: 'subscribe', ...subject });
    assert.deepEqual([response.type, response.subscription ?? response.stream], ['subscribed', Object.keys(got)[id]]);
  }
  const offsets = [];
  for (const [id, name] of [[10, 'chat/1'], [11, 'chat/2'], [12, 'chat/1']]) {
    const { type, offset } = await client.ask(id, { type: 'append', stream: name, data: { id } });
    assert.equal(type, 'appended');
    offsets.push(offset);
  }
  const head = await encke.request('HEAD', '/v1/stream/chat/1');
  assert.equal(offsets.at(-1), head.headers['stream-next-offset'], 'an append is acknowledged with the offset behind it');
  const has = async (name, count) => {
    while (got[name].length < count) await once(client.socket, 'message');
  };
  await has(stream, 2);
  await has(pattern, 3);
  for (const [id, subject] of subjects.slice(0, 2).entries()) {
    assert.equal((await client.ask(20 + id, { type: 'unsubscribe', ...subject })).type, 'unsubscribed');
  }
  // This one reaches the subscription that is left.
  await client.ask(13, { type: 'append', stream: 'chat/1', data: { id: 13 } });
  await has(list, 4);
  const ids = Object.fromEntries(Object.entries(got).map(([name, messages]) => [name, messages.map(({ id }) => id)]));
  assert.deepEqual(ids, { [stream]: [10, 12], [pattern]: [10, 11, 12], [list]: [10, 11, 12, 13] });
  client.end();
});

test('appends of a producer that do not wait for each other are stored once, also when all are sent again', TIMEOUT, async () => {
  await create(encke, 'pipelined');
  const client = await Client.open(encke);
  const numbers = Array.from({ length: 5_000 }, (_, number) => number);
  for (const isRepetition of [false, true]) {
    for (const number of numbers) {
      const producer = { id: 'writer-1', epoch: 0, seq: number };
      client.send({ type: 'append', id: number, stream: 'pipelined', data: number, producer });
    }
    const acknowledged = new Set();
    while (acknowledged.size < numbers.length) {
      const { type, id, duplicate } = await client.message({ stream: 'pipelined' });
      assert.deepEqual([type, duplicate ?? false], ['appended', isRepetition]);
      acknowledged.add(id);
    }
  }
  assert.deepEqual(await read(encke, 'pipelined'), numbers);
  client.end();
});

test('long histories of several subscriptions come at once, each whole and in order', TIMEOUT, async () => {
  // More than is in memory, so that it is read from disk.
  const args = ['--ring', '1MiB', '--tuning', 'history-cache=64KiB'];
  const server = await Encke.start({ data: join(folder, 'histories'), args });
  try {
    const streams = ['long/a', 'long/b', 'long/c'];
    await create(server, ...streams);
    const numbers = Array.from({ length: 1_000 }, (_, number) => number);
    const text = 'x'.repeat(4_000);
    for (let first = 0; first < numbers.length; first += 10) {
      const messages = numbers.slice(first, first + 10).map((number) => ({ number, text }));
      for (const stream of streams) await append(server, stream, messages);
    }
    const client = await Client.open(server);
    const got = Object.fromEntries([...streams, 'long/**'].map((name) => [name, []]));
    for (const name of Object.keys(got)) client.send(subscribe(name));
    while (got['long/**'].length < streams.length * numbers.length || streams.some((stream) => got[stream].length < numbers.length)) {
      const { subscription, stream, data } = await client.message({ type: 'records' });
      for (const message of data) {
        assert.equal(message.text, text);
        got[subscription ?? stream].push([stream, message.number]);
      }
    }
    for (const name of Object.keys(got)) {
      for (const stream of streams.filter((one) => [one, 'long/**'].includes(name))) {
        const ofStream = got[name].filter(([of]) => of === stream);
        assert.deepEqual(ofStream.map(([, number]) => number), numbers, `${stream} of ${name}`);
      }
    }
    client.end();
  } finally {
    await server.stop();
  }
});

test('a connection of one stream begins at the offset of its URL', TIMEOUT, async () => {
  await create(encke, 'one');
  for (const value of [1, 2]) await append(encke, 'one', value);
  const client = await Client.open(encke, { path: '/v1/stream/one?offset=-1&live=websocket' });
  const { data, offset } = await client.message({ type: 'records' });
  assert.deepEqual(data, [1, 2]);
  await append(encke, 'one', 3);
  client.end();
  const next = await Client.open(encke, { path: `/v1/stream/one?offset=${offset}&live=websocket` });
  assert.deepEqual((await next.message({ type: 'records' })).data, [3]);
  next.end();
});

for (const [name, tls] of [['ws', undefined], ['wss', certificate]]) {
  test(`${name}: every record of a stream, a pattern and a list once and in order, over kill -9 in the middle of appends`, TIMEOUT, async () => {
    const ca = tls && readFileSync(tls.cert);
    class Trusting extends WebSocket {
      constructor(url, protocols) {
        super(url, protocols, { ca });
      }
    }
    const startLoad = (url) => new Load(Trusting, webSocketUrl(url), LOAD);
    await everyRecordOnceOverCuts({ data: join(folder, `cuts-${name}`), tls }, startLoad);
  });
}

test('a token comes as a subprotocol, which the response does not repeat', TIMEOUT, async () => {
  await createGuarded('protocol');
  const client = await Client.open(guarded, { protocols: ['encke.v1', protocolOf(await sign(600))] });
  assert.equal(client.socket.protocol, 'encke.v1');
  assert.equal((await client.ask(1, subscribe('protocol'))).type, 'subscribed');
  assert.equal((await client.ask(2, { type: 'append', stream: 'protocol', data: 2 })).type, 'appended');
  client.end();
  const [, , signature] = (await sign(600)).split('.');
  const wrong = `${(await sign(600, {})).split('.').slice(0, 2).join('.')}.${signature}`;
  assert.deepEqual(await Client.refused(guarded, { protocols: ['encke.v1', protocolOf(wrong)] }), [401, 'signature']);
});

test('a token comes in a message, and nothing is taken before it', TIMEOUT, async () => {
  await createGuarded('message');
  const client = await Client.open(guarded);
  isRefused(await client.ask(1, subscribe('message')), 401, 'no_credentials');
  isRefused(await client.ask(2, { type: 'append', stream: 'message', data: 2 }), 401, 'no_credentials');
  isRefused(await client.ask(3, { type: 'authenticate', token: `${await sign(600)}x` }), 401, 'signature');
  isRefused(await client.ask(4, subscribe('message')), 401, 'no_credentials');
  const token = await sign(600, { read: ['/v1/stream/message'] });
  const { exp } = JSON.parse(Buffer.from(token.split('.')[1], 'base64url'));
  const { expiresInMs, ...authenticated } = await client.ask(5, { type: 'authenticate', token });
  assert.deepEqual(authenticated, { type: 'authenticated', id: 5, until: exp * 1000 });
  assert.ok(expiresInMs > 0 && expiresInMs <= 600_000, `${expiresInMs} ms`);
  assert.equal((await client.ask(6, subscribe('message'))).type, 'subscribed');
  assert.deepEqual((await client.message({ type: 'records' })).data, [1]);
  isRefused(await client.ask(7, { type: 'append', stream: 'message', data: 2 }), 403, 'forbidden');
  client.end();
});

test('subscriptions go on when a token is renewed before its end, and others are closed at it', TIMEOUT, async () => {
  await createGuarded('renewed');
  const open = async (token) => {
    const client = await Client.open(guarded, { protocols: ['encke.v1', protocolOf(token)] });
    await client.ask(1, subscribe('renewed'));
    assert.deepEqual((await client.message({ type: 'records' })).data, [1]);
    return client;
  };
  // Time for a busy machine to subscribe twice and to renew.
  const token = await sign(15);
  const [renewed, ended] = [await open(token), await open(token)];
  // A token that is refused changes nothing.
  isRefused(await renewed.ask(2, { type: 'authenticate', token: await sign(-600) }), 401, 'expired');
  assert.equal((await renewed.ask(3, { type: 'authenticate', token: await sign(600) })).type, 'authenticated');
  isRefused(await ended.message({ type: 'error' }), 401, 'credentials_ended');
  assert.equal(await ended.closed, 4401);
  const { type } = await renewed.ask(4, { type: 'append', stream: 'renewed', data: 2 });
  assert.equal(type, 'appended');
  const other = await Client.open(guarded, { protocols: ['encke.v1', protocolOf(await sign(600))] });
  await other.ask(1, { type: 'append', stream: 'renewed', data: 3 });
  other.end();
  // The records of the first append may have come before its acknowledgement.
  while (!(await renewed.message({ type: 'records' })).data.includes(3));
  // A caller that may read less loses what it may not.
  renewed.send({ type: 'authenticate', token: await sign(600, { read: ['/v1/stream/other'] }) });
  isRefused(await renewed.message({ type: 'error', stream: 'renewed' }), 404, 'not_found');
  renewed.end();
});

test('handshakes are refused: a page of another origin, no credentials, a wrong path', TIMEOUT, async () => {
  const evil = { origin: 'https://evil.example' };
  assert.deepEqual(await Client.refused(encke, evil), [403, 'origin']);
  assert.deepEqual(await Client.refused(guarded, evil), [403, 'origin']);
  const withToken = { ...evil, protocols: ['encke.v1', protocolOf(await sign(600))] };
  assert.deepEqual(await Client.refused(guarded, withToken), [403, 'origin']);
  // Only a client that offers the subprotocol knows how to authenticate later.
  assert.deepEqual(await Client.refused(guarded, { protocols: [] }), [401, 'no_credentials']);
  assert.deepEqual(await Client.refused(encke, { path: '/healthz' }), [400, 'no_websocket']);
});

test('without access control a client needs no subprotocol, and gets none that it does not offer', TIMEOUT, async () => {
  const plain = await Client.open(encke, { protocols: [] });
  assert.equal(plain.socket.protocol, '');
  isRefused(await plain.ask(1, { type: 'subscribe', stream: 'none' }), 404, 'not_found');
  plain.end();
  const several = await Client.open(encke, { protocols: ['other.v9', 'encke.v1'] });
  assert.equal(several.socket.protocol, 'encke.v1');
  several.end();
  // RFC 6455, section 4.1: without a subprotocol in the response, the client decides; ws fails the connection.
  const socket = new WebSocket(webSocketUrl(encke.url), ['other.v9']);
  const [error] = await once(socket, 'error');
  assert.match(error.message, /sent no subprotocol/);
});

test('pings are answered, and a client that answers none is closed', TIMEOUT, async () => {
  // Time for a busy machine to answer.
  const pinging = await Encke.start({ data: join(folder, 'pinging'), args: ['--tuning', 'heartbeat=10s'] });
  try {
    const silent = await Client.open(pinging, { autoPong: false });
    const client = await Client.open(pinging);
    let pings = 0;
    client.socket.on('ping', () => (pings += 1));
    client.socket.ping('are you there?');
    const [payload] = await once(client.socket, 'pong');
    assert.equal(String(payload), 'are you there?');
    assert.equal(await silent.closed, 4408);
    while (pings < 2) await once(client.socket, 'ping');
    // A client that answers is still served.
    isRefused(await client.ask(1, { type: 'subscribe', stream: 'none' }), 404, 'not_found');
    client.end();
  } finally {
    await pinging.stop();
  }
});

test('a message in several frames, with pings in between', TIMEOUT, async () => {
  await create(encke, 'frames');
  const client = await Client.open(encke);
  const text = Buffer.from(JSON.stringify({ type: 'append', id: 1, stream: 'frames', data: { text: 'Grüße, 世界' } }));
  // Each byte is a frame, so that characters are cut.
  for (const [index, byte] of text.entries()) {
    client.socket.send(Buffer.of(byte), { binary: false, compress: false, fin: index + 1 === text.length });
    if (index % 10 === 0) client.socket.ping();
  }
  assert.equal((await client.message({ id: 1 })).type, 'appended');
  assert.deepEqual(await read(encke, 'frames'), [{ text: 'Grüße, 世界' }]);
  client.end();
});

test('a message of the size of body-max is taken, and a larger one closes the connection with 1009', TIMEOUT, async () => {
  await create(encke, 'large');
  for (const perMessageDeflate of [false, true]) {
    for (const frames of [1, 3]) {
      const client = await Client.open(encke, { perMessageDeflate });
      const message = (bytes) => {
        const [head, tail] = ['{"type":"append","id":1,"stream":"large","data":"', '"}'];
        return Buffer.from(head + 'x'.repeat(bytes - head.length - tail.length) + tail);
      };
      const send = (bytes) => {
        const whole = message(bytes);
        const size = Math.ceil(bytes / frames);
        for (let at = 0; at < bytes; at += size) {
          client.socket.send(whole.subarray(at, at + size), { binary: false, fin: at + size >= bytes });
        }
      };
      client.socket.on('error', () => {}); // The server may close before it has received everything.
      send(BODY_BYTES_MAX);
      assert.equal((await client.message({ id: 1 })).type, 'appended');
      send(BODY_BYTES_MAX + 1);
      assert.equal(await client.closed, 1009);
    }
  }
  assert.equal((await read(encke, 'large')).length, 4);
});

test('close codes: a binary message, a close of the client, a stop of the server', TIMEOUT, async () => {
  const binary = await Client.open(encke);
  binary.socket.send(Buffer.from('{}'), { binary: true });
  assert.equal(await binary.closed, 1003);
  const leaving = await Client.open(encke);
  leaving.socket.close(1000);
  assert.equal(await leaving.closed, 1000);

  const stopped = await Encke.start({ data: join(folder, 'stopped') });
  await create(stopped, 's');
  const [subscribed, idle] = [await Client.open(stopped), await Client.open(stopped)];
  await subscribed.ask(1, subscribe('s'));
  await stopped.stop();
  assert.deepEqual([await subscribed.closed, await idle.closed], [1001, 1001]);
});

test('messages are compressed in both directions where the server allows it, within its bound', TIMEOUT, async () => {
  const compressing = await Encke.start({ data: join(folder, 'compressing'), args: ['--tuning', 'websocket-inflated-max=32KiB'] });
  await create(compressing, 's');
  const client = await Client.open(compressing, { perMessageDeflate: { serverMaxWindowBits: 13 } });
  assert.match(client.socket.extensions, /permessage-deflate/);
  await client.ask(1, { type: 'subscribe', stream: 's' });
  const text = 'so much text that is the same, '.repeat(900);
  const before = client.socket._socket.bytesRead;
  for (let id = 2; id < 12; id++) client.send({ type: 'append', id, stream: 's', data: `${id}${text}` });
  for (let id = 2; id < 12; id++) {
    const { data } = await client.message({ type: 'records' });
    assert.deepEqual(data, [`${id}${text}`]);
  }
  assert.ok(client.socket._socket.bytesRead - before < text.length);
  const closed = await Client.open(compressing, { perMessageDeflate: true });
  closed.socket.on('error', () => {});
  closed.send({ type: 'append', stream: 's', data: 'x'.repeat(40_000) });
  assert.equal(await closed.closed, 1009);
  // A client that offers nothing is sent nothing compressed.
  const plain = await Client.open(compressing, { perMessageDeflate: false });
  assert.equal(plain.socket.extensions, '');
  await plain.ask(1, { type: 'subscribe', stream: 's', offset: '-1' });
  assert.deepEqual((await plain.message({ type: 'records' })).data[0], `2${text}`);
  plain.end();
  client.end();
  await compressing.stop();
});
