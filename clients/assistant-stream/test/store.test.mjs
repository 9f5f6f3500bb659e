// Streams of `assistant-stream` in Encke: each reader has each chunk once, over cuts, restarts of the server and ends of processes.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { after, before, test } from 'node:test';
import { Client, EnckeError } from '@encke/client';
import { createEnckeResumableStreamStore } from '@encke/assistant-stream';
import { createResumableStreamContext } from 'assistant-stream/resumable';
import { waitFor } from '../../../tests/web/wait.mjs';
import { numbers, Server } from '../../js/test/server.mjs';
import { guarded, token } from '../../js/test/token.mjs';
import { inProcess, losing, Reader, Source } from '../../resumable-stream/test/answers.mjs';

const TIMEOUT = { timeout: 120_000 };
const PROCESS = new URL('stream-process.mjs', import.meta.url);
const CHUNKS = ['0:"An"\n', '0:" answer"\n', '0:"ö😀"\n', 'd:{}\n'];
const never = new AbortController().signal;

let server;

before(async () => {
  server = await Server.start();
});
after(() => server?.end());

const storeOf = (options) => createEnckeResumableStreamStore({ base: server.url, ...options });
const contextOf = (options, hooks) => createResumableStreamContext({ store: storeOf(options), ...hooks });
const sourceOf = (chunks) => new Source(chunks.map((chunk) => (typeof chunk === 'string' ? new TextEncoder().encode(chunk) : chunk)));
const bytes = (text) => new TextEncoder().encode(text);
const text = (chunk) => new TextDecoder().decode(chunk);

/** Reads the texts of chunks as they come. */
const readerOf = (chunks) => new Reader((async function* () {
  for await (const chunk of chunks) yield text(chunk.chunk ?? chunk);
})());

test('readers that come at any time have all chunks, over kill -9 of the server', TIMEOUT, async () => {
  const chunks = numbers(40).map((number) => `0:"${number}"\n`);
  const source = sourceOf(chunks);
  const [context, other] = [contextOf(), contextOf()];
  assert.equal(await context.resume('killed'), null);
  const first = readerOf(await context.run('killed', source.make));
  source.say(10);
  await first.has(10);
  const readers = (await Promise.all([other.run('killed', source.make), other.resume('killed')])).map(readerOf);
  for (const reader of readers) await reader.has(10);
  source.say(10);
  const restarted = server.restart('kill');
  source.say(10);
  await restarted;
  await first.has(30);
  source.finish();
  for (const reader of [first, ...readers]) assert.deepEqual(await reader.all(), chunks);
  assert.equal(await other.status('killed'), 'done');
  assert.deepEqual(await readerOf(await contextOf().run('killed', source.make)).all(), chunks);
  assert.equal(source.makes, 1);
});

test('a reader goes on behind any chunk', TIMEOUT, async () => {
  const store = storeOf();
  await store.acquire('cursors');
  for (const chunk of CHUNKS) await store.append('cursors', bytes(chunk));
  await store.finalize('cursors', 'done');
  const entries = [];
  for await (const entry of store.read('cursors', '', never)) entries.push(entry);
  for (const [index, { cursor }] of entries.entries()) {
    assert.deepEqual(await readerOf(storeOf().read('cursors', cursor, never)).all(), CHUNKS.slice(index + 1));
  }
});

test('chunks at the same time through a store that has not acquired the stream keep their order', TIMEOUT, async () => {
  const [store, other] = [storeOf(), storeOf()];
  const { lease } = await store.acquireLease('foreign');
  const chunks = numbers(20).map((number) => `${number} `);
  const appends = chunks.map((chunk) => other.append('foreign', bytes(chunk), lease));
  const isDone = other.finalize('foreign', 'done', undefined, lease);
  await Promise.all(appends);
  assert.equal(await isDone, true);
  assert.deepEqual(await readerOf(storeOf().read('foreign', '', never)).all(), chunks);
});

test('of callers at the same time one makes the stream', TIMEOUT, async () => {
  const sources = numbers(5).map(() => sourceOf(CHUNKS));
  const streams = await Promise.all(sources.map(({ make }) => contextOf().run('at-once', make)));
  for (const source of sources) source.finish();
  for (const stream of streams) assert.deepEqual(await readerOf(stream).all(), CHUNKS);
  assert.equal(sources.reduce((sum, { makes }) => sum + makes, 0), 1);
});

test('another process resumes a stream, and learns that the process which wrote it was killed', TIMEOUT, async () => {
  const writer = inProcess(PROCESS, 'write', server.url, 'process', 'one', 'two', 'three');
  writer.child.stdin.write('..');
  await writer.reader.has(2);
  const reader = inProcess(PROCESS, 'read', server.url, 'process');
  await reader.reader.has(2);
  writer.child.kill('SIGKILL');
  const end = 'The process that wrote the stream has ended';
  assert.deepEqual(await reader.reader.all(), ['one', 'two', { end }]);
  assert.equal(await storeOf().status('process'), 'error');
  const late = readerOf(await contextOf().run('process', () => assert.fail('it has begun')));
  assert.equal((await late.failure()).message, end);
  assert.deepEqual(late.chunks, ['one', 'two']);
});

test('a stream that fails, with a message of any characters', TIMEOUT, async (t) => {
  // The package prints that a source which has failed cannot be cancelled.
  t.mock.method(console, 'error', () => {});
  for (const [id, message] of [['short', 'no model: ä 😀\n'], ['long', 'ü'.repeat(1_000)], ['cut', `ü${'😀'.repeat(1_000)}`]]) {
    const source = sourceOf(['one', new Error(message)]);
    const first = readerOf(await contextOf().run(id, source.make));
    source.finish();
    const second = readerOf(await contextOf().requireResume(id));
    for (const reader of [first, second]) {
      const failure = await reader.failure();
      assert.ok(failure.message.length >= 15 && message.startsWith(failure.message), failure.message);
      assert.deepEqual(reader.chunks, ['one']);
    }
    assert.equal(await storeOf().status(id), 'error');
  }
});

test('a reader stops a stream, and its source is cancelled', TIMEOUT, async () => {
  const source = sourceOf(CHUNKS);
  const reader = readerOf(await contextOf({}, { onError: () => {} }).run('stopped', source.make));
  source.say();
  await reader.has(1);
  await new Client({ base: server.url }).close('assistant-stream/stopped', 'stopped');
  source.say();
  await waitFor('the source is cancelled', () => source.isCancelled);
  assert.deepEqual(await reader.all(), CHUNKS.slice(0, 1));
  assert.equal(await storeOf().status('stopped'), 'done');
});

test('a lease holds in any store, and no longer than its stream', TIMEOUT, async () => {
  const [store, other] = [storeOf(), storeOf()];
  const { lease } = await store.acquireLease('lease');
  assert.deepEqual(await other.acquireLease('lease'), { role: 'consumer' });
  await store.append('lease', bytes('1'), lease);
  await other.append('lease', bytes('2'), lease);
  await store.append('lease', bytes('3'), lease);
  await other.append('lease', bytes('4'));
  await store.append('lease', new Uint8Array(0), lease);
  assert.equal(await other.finalize('lease', 'done', undefined, lease), true);
  assert.equal(await store.finalize('lease', 'done', undefined, lease), false);
  await assert.rejects(store.append('lease', bytes('5'), lease), { code: 'finalized' });
  assert.deepEqual(await readerOf(store.read('lease', '', never)).all(), ['1', '2', '3', '4']);
  await other.delete('lease');
  await other.delete('lease');
  await assert.rejects(store.append('lease', bytes('5'), lease), /Stream not found/);
  await assert.rejects(store.finalize('lease', 'done', undefined, lease), /Stream not found/);
  await assert.rejects(readerOf(store.read('lease', '', never)).all(), /Stream not found/);
  // A later stream of the id belongs to another producer.
  const { lease: first } = await store.acquireLease('again');
  await store.append('again', bytes('old'), first);
  await other.delete('again');
  const { lease: second } = await other.acquireLease('again');
  for (const held of [first, undefined]) {
    await assert.rejects(store.append('again', bytes('stale'), held), { code: 'missing' });
  }
  assert.equal(await store.finalize('again', 'error', 'stale', first), false);
  await other.append('again', bytes('new'), second);
  assert.equal(await other.finalize('again', 'done', undefined, second), true);
  assert.deepEqual(await readerOf(store.read('again', '', never)).all(), ['new']);
});

test('a reader that is aborted, or whose stream is deleted, ends', TIMEOUT, async () => {
  const store = storeOf();
  await store.acquire('ends');
  await store.append('ends', bytes('1'));
  const controller = new AbortController();
  const [aborted, deleted] = [readerOf(store.read('ends', '', controller.signal)), readerOf(store.read('ends', '', never))];
  await aborted.has(1);
  await deleted.has(1);
  controller.abort();
  assert.deepEqual(await aborted.all(), ['1']);
  await store.delete('ends');
  assert.deepEqual(await deleted.all(), ['1']);
  assert.equal(await store.status('ends'), 'missing');
});

test('an append behind one that may be stored, and was refused, is stored', TIMEOUT, async () => {
  let posts = 0;
  const store = storeOf({
    fetch: async (url, init) => {
      if (init.method !== 'POST') return fetch(url, init);
      posts += 1;
      // The first append is stored, and its response is lost; the token has ended when it is repeated.
      if (posts === 2) return Response.json({ error: { code: 'expired', message: 'the token has ended' } }, { status: 401 });
      const response = await fetch(url, init);
      if (posts === 1) throw new TypeError('the connection is cut');
      return response;
    },
  });
  await store.acquire('uncertain');
  await assert.rejects(store.append('uncertain', bytes('one')), { code: 'expired' });
  await store.append('uncertain', bytes('two'));
  await store.finalize('uncertain', 'done');
  assert.deepEqual(await readerOf(storeOf().read('uncertain', '', never)).all(), ['one', 'two']);
});

test('an append stores the bytes of its call', TIMEOUT, async () => {
  const store = storeOf();
  const { lease } = await store.acquireLease('refilled');
  const buffer = new Uint8Array(8);
  for (const writer of [store, storeOf()]) {
    buffer.fill(0x31);
    const appended = writer.append('refilled', buffer, lease);
    buffer.fill(0x32);
    await appended;
  }
  await store.finalize('refilled', 'done', undefined, lease);
  assert.deepEqual(await readerOf(store.read('refilled', '', never)).all(), ['11111111', '11111111']);
});

test('a redirect and a page of a portal are no acknowledgements', TIMEOUT, async () => {
  const portal = createServer((request, response) => {
    if (request.url === '/redirect') response.writeHead(302, { Location: '/page' }).end();
    else response.writeHead(200, { 'Content-Type': 'text/html' }).end('<title>Log in</title>');
  });
  await once(portal.listen(0, '127.0.0.1'), 'listening');
  try {
    for (const path of ['redirect', 'page']) {
      const url = `http://127.0.0.1:${portal.address().port}/${path}`;
      const store = storeOf({ fetch: (own, init) => fetch(init.method === 'POST' ? url : own, init) });
      await store.acquire(path);
      const offset = async () => (await server.request('HEAD', `/v1/stream/assistant-stream/${path}`)).headers['stream-next-offset'];
      const before = await offset();
      await assert.rejects(store.append(path, bytes('lost')), EnckeError);
      assert.equal(await offset(), before);
    }
  } finally {
    portal.closeAllConnections();
    portal.close();
  }
});

test('requests whose responses are lost have their effect once', TIMEOUT, async () => {
  const isPost = ({ method }) => method === 'POST';
  const fetch = losing(({ method }) => method === 'PUT', isPost, isPost, ({ headers }) => headers.has('Stream-Closed'));
  const source = sourceOf(CHUNKS);
  const finalized = [];
  const first = readerOf(await contextOf({ fetch }, { onFinalize: (...args) => finalized.push(args) }).run('lost', source.make));
  source.finish();
  assert.deepEqual(await first.all(), CHUNKS);
  await waitFor('it is finalized', () => finalized.length > 0);
  assert.deepEqual(finalized, [['lost', 'done']]);
  assert.equal(source.makes, 1);
});

test('ids, bytes, and times', TIMEOUT, async () => {
  const all = Uint8Array.from(numbers(256));
  for (const id of ['.', '..', 'a:b-c_d.e', 'x'.repeat(256)]) {
    const store = storeOf({ ttlMs: 5_000 });
    assert.equal(await store.acquire(id), 'producer');
    await store.append(id, Buffer.from(all));
    await store.finalize(id, 'done');
    for await (const { chunk } of store.read(id, '', never)) assert.deepEqual(chunk, all);
  }
  for (const id of ['', 'a/b', 'ä', 'x'.repeat(257)]) await assert.rejects(storeOf().acquire(id), { code: 'invalid-id' });
  const ttl = async (id) => (await server.request('HEAD', `/v1/stream/assistant-stream/${id}`)).headers['stream-ttl'];
  assert.equal(await ttl('a:b-c_d.e'), '5');
  await storeOf().acquire('ttl', { ttlMs: 1_500 });
  assert.equal(await ttl('ttl'), '2');
});

test('many streams at a time, with two readers each, over kill -9', TIMEOUT, async () => {
  const streams = await Promise.all(
    numbers(30).map(async (number) => {
      const chunks = numbers(10).map((index) => `${number}.${index} `);
      const source = sourceOf(chunks);
      const readers = [readerOf(await contextOf().run(`many-${number}`, source.make))];
      source.say(3);
      readers.push(readerOf(await contextOf().requireResume(`many-${number}`)));
      return { chunks, source, readers };
    }),
  );
  await streams[15].readers[1].has(3);
  const restarted = server.restart('kill');
  for (const { source } of streams) source.say(3);
  await restarted;
  for (const { source } of streams) source.finish();
  for (const { chunks, readers } of streams) {
    for (const reader of readers) assert.deepEqual(await reader.all(), chunks);
  }
});

test('with access control the store has a token, which it renews', TIMEOUT, async () => {
  const access = await Server.start(guarded);
  try {
    let asked = 0;
    const context = contextOf({ base: access.url, token: () => token(asked++ ? 600 : -60) });
    const source = sourceOf(CHUNKS);
    source.finish();
    assert.deepEqual(await readerOf(await context.run('a', source.make)).all(), CHUNKS);
    await context.delete('a');
    await assert.rejects(contextOf({ base: access.url }).status('a'), { status: 401 });
  } finally {
    await access.end();
  }
});
