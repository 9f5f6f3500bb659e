// Answers by `createResumableStreamContext`: each reader has each chunk once, over cuts, restarts of the server and ends of processes.

import assert from 'node:assert/strict';
import { after, before, mock, test } from 'node:test';
import { Client } from '@encke/client';
import { createResumableStreamContext } from '@encke/resumable-stream';
import { waitFor } from '../../../tests/web/wait.mjs';
import { numbers, Server } from '../../js/test/server.mjs';
import { inProcess, losing, Reader, Source, textOf } from './answers.mjs';

const TIMEOUT = { timeout: 120_000 };
const PROCESS = new URL('answer-process.mjs', import.meta.url);
const CHUNKS = ['An', ' answer', '', ' of', '\r\nsome \n', ' tokens', '.'];
const TEXT = CHUNKS.join('');

let server;
let context;

before(async () => {
  server = await Server.start();
  context = contextOf();
});
after(() => server?.end());

const contextOf = (options) => createResumableStreamContext({ base: server.url, ...options });
const stateOf = async (id) => (await server.request('HEAD', `/v1/stream/resumable-stream/${id}`)).headers;

test('readers that come at any time have the whole answer, and behind the end there is none', TIMEOUT, async () => {
  const source = new Source(CHUNKS);
  assert.equal(await context.hasExistingStream('a'), null);
  assert.equal(await context.resumeExistingStream('a'), undefined);
  const first = new Reader(await context.resumableStream('a', source.make));
  assert.equal(await context.hasExistingStream('a'), true);
  source.say(2);
  await first.has(2);
  const other = contextOf();
  const [second, third] = (await Promise.all([other.resumableStream('a', source.make), other.resumeExistingStream('a', 5)])).map((stream) => new Reader(stream));
  await second.has(2);
  await third.has(1);
  source.finish();
  assert.deepEqual(await first.all(), CHUNKS);
  // A context finds done what it has given to its end.
  assert.equal(await context.hasExistingStream('a'), 'DONE');
  assert.equal(await context.resumableStream('a', source.make), null);
  assert.equal(await context.resumeExistingStream('a'), null);
  assert.equal((await second.all()).join(''), TEXT);
  assert.equal((await third.all()).join(''), TEXT.slice(5));
  assert.equal(source.makes, 1);
  assert.equal((await stateOf('a'))['encke-end-reason'], 'done');
  for (const skip of [0, 4, TEXT.length, TEXT.length + 1]) {
    assert.equal(await textOf(await contextOf({ replaysDone: true }).resumeExistingStream('a', skip)), TEXT.slice(skip));
  }
});

test('of callers that begin an answer at the same time one makes it, and all have it', TIMEOUT, async () => {
  const sources = numbers(5).map(() => new Source(CHUNKS));
  const streams = await Promise.all(sources.map(({ make }) => contextOf().resumableStream('at-once', make)));
  for (const source of sources) source.finish();
  for (const stream of streams) assert.equal(await textOf(stream), TEXT);
  assert.equal(sources.reduce((sum, { makes }) => sum + makes, 0), 1);
});

test('an answer goes on over kill -9 of the server, with each chunk once', TIMEOUT, async () => {
  const chunks = numbers(60).map((number) => ` ${number}`);
  const source = new Source(chunks);
  const first = new Reader(await context.createNewResumableStream('killed', source.make));
  const second = new Reader(await context.resumeExistingStream('killed'));
  source.say(10);
  await second.has(10);
  source.say(10);
  const restarted = server.restart('kill');
  source.say(10);
  await first.has(30);
  await restarted;
  // This one comes after the restart, and skips what it has.
  const third = new Reader(await contextOf().resumeExistingStream('killed', chunks.slice(0, 7).join('').length));
  source.finish();
  for (const reader of [first, second]) assert.deepEqual(await reader.all(), chunks);
  assert.deepEqual(await third.all(), chunks.slice(7));
});

test('another process resumes an answer, and learns that the process which wrote it was killed', TIMEOUT, async () => {
  const writer = inProcess(PROCESS, 'context', 'write', server.url, 'process', 'one', 'two', 'three');
  writer.child.stdin.write('..');
  await writer.reader.has(2);
  const reader = inProcess(PROCESS, 'context', 'read', server.url, 'process');
  const here = new Reader(await context.resumeExistingStream('process'));
  await reader.reader.has(2);
  await here.has(2);
  writer.child.kill('SIGKILL');
  assert.deepEqual(await reader.reader.all(), ['one', 'two', { end: 'abandoned' }]);
  assert.equal((await here.failure()).code, 'abandoned');
  assert.deepEqual(here.chunks, ['one', 'two']);
  // Later readers get the same.
  assert.equal(await context.hasExistingStream('process'), 'DONE');
  const late = new Reader(await context.resumableStream('process', () => assert.fail('it has begun')));
  assert.equal((await late.failure()).code, 'abandoned');
  assert.deepEqual(late.chunks, ['one', 'two']);
});

test('a source that fails, or that cannot be made, fails the answer', TIMEOUT, async () => {
  const source = new Source(['one', new Error('no model')]);
  const written = [];
  const first = new Reader(await contextOf({ waitUntil: (promise) => written.push(promise) }).createNewResumableStream('failed', source.make));
  source.finish();
  assert.match((await first.failure()).message, /no model/);
  await Promise.all(written);
  assert.equal((await stateOf('failed'))['encke-end-reason'], 'failed');
  const second = new Reader(await context.resumeExistingStream('failed'));
  assert.equal((await second.failure()).code, 'failed');
  assert.deepEqual(second.chunks, ['one']);
  const none = new Reader(await context.resumableStream('none', () => { throw new Error('no source'); }));
  assert.match((await none.failure()).message, /no source/);
  assert.equal(await context.hasExistingStream('none'), 'DONE');
});

for (const [how, stop] of [
  ['ends it', (id) => contextOf().stop(id)],
  ['asks for the end', (id) => new Client({ base: server.url }).stop(`resumable-stream/${id}`)],
]) {
  test(`a reader stops an answer: ${how}`, TIMEOUT, async () => {
    const id = `stopped/${how.replaceAll(' ', '-')}`;
    const source = new Source(CHUNKS);
    const written = [];
    const first = new Reader(await contextOf({ waitUntil: (promise) => written.push(promise) }).resumableStream(id, source.make));
    source.say(2);
    const second = new Reader(await context.resumeExistingStream(id));
    await second.has(2);
    await stop(id);
    source.say();
    await waitFor('the source is cancelled', () => source.isCancelled);
    // The chunk that the source said meanwhile may be there.
    for (const reader of [first, second]) assert.deepEqual((await reader.all()).slice(0, 2), CHUNKS.slice(0, 2));
    await Promise.all(written);
    assert.equal((await stateOf(id))['encke-end-reason'], 'stopped');
    assert.equal(await context.resumeExistingStream(id), null);
    assert.equal(await context.stop(id), false);
    assert.equal(await context.stop('missing'), false);
  });
}

test('a quiet source keeps its answer by heartbeats, and they find that it is stopped', TIMEOUT, async () => {
  mock.timers.enable({ apis: ['setInterval'] });
  try {
    const heartbeats = [];
    const counting = async (url, init) => {
      const response = await fetch(url, init);
      if (init.method === 'POST' && !init.body) heartbeats.push(response.status);
      return response;
    };
    const source = new Source(CHUNKS);
    const first = new Reader(await contextOf({ fetch: counting, producerTimeout: 30 }).resumableStream('quiet', source.make));
    mock.timers.tick(10_000); // Nothing was quiet so far.
    for (let count = 1; count <= 3; count += 1) {
      mock.timers.tick(10_000);
      await waitFor('a heartbeat', () => heartbeats.length === count);
    }
    assert.deepEqual(heartbeats, [204, 204, 204]);
    await context.stop('quiet');
    mock.timers.tick(10_000);
    await waitFor('the source is cancelled', () => source.isCancelled);
    assert.deepEqual(await first.all(), []);
  } finally {
    mock.timers.reset();
  }
});

test('a new answer takes the place of one that is being written', TIMEOUT, async () => {
  const [old, young] = [new Source(CHUNKS), new Source(['new'])];
  const oldReader = new Reader(await context.createNewResumableStream('replaced', old.make));
  old.say(2);
  const resumed = new Reader(await context.resumeExistingStream('replaced'));
  await resumed.has(2);
  const youngReader = new Reader(await contextOf().createNewResumableStream('replaced', young.make));
  assert.equal((await resumed.failure()).code, 'deleted');
  old.say();
  assert.equal((await oldReader.failure()).code, 'tail_differs');
  await waitFor('the old source is cancelled', () => old.isCancelled);
  young.finish();
  assert.deepEqual(await youngReader.all(), ['new']);
  await waitFor('the new answer is stored', async () => (await context.hasExistingStream('replaced')) === 'DONE');
  assert.deepEqual(await server.read('resumable-stream/replaced'), ['new']);
});

test('an answer whose reader leaves is written to its end', TIMEOUT, async () => {
  const source = new Source(CHUNKS);
  const written = [];
  const stream = await contextOf({ waitUntil: (promise) => written.push(promise) }).resumableStream('left', source.make);
  await stream.cancel();
  const left = await context.resumeExistingStream('left');
  await left.cancel();
  source.finish();
  await Promise.all(written);
  assert.equal((await server.read('resumable-stream/left')).join(''), TEXT);
});

test('requests whose responses are lost have their effect once', TIMEOUT, async () => {
  const isPost = ({ method }) => method === 'POST';
  const fetch = losing(
    ({ method }) => method === 'PUT',
    isPost,
    ({ method, headers }) => isPost({ method }) && headers.get('Producer-Seq') === '3',
    ({ headers }) => headers.has('Stream-Closed'),
  );
  const source = new Source(CHUNKS);
  const first = new Reader(await contextOf({ fetch }).resumableStream('lost', source.make));
  for (let count = 1; count <= CHUNKS.length; count += 1) {
    source.say();
    await waitFor('the chunk is stored', async () => (await server.read('resumable-stream/lost')).length === count);
  }
  source.finish();
  await first.all();
  await waitFor('the end', async () => (await context.hasExistingStream('lost')) === 'DONE');
  assert.deepEqual(await server.read('resumable-stream/lost'), CHUNKS);
  assert.equal(source.makes, 1);
});

test('ids and chunks of any characters, and chunks that are large together', TIMEOUT, async () => {
  const ids = ['', 'a/b', '/', 'a//b/', '.', '..', 'a/../b', '*', 'a/**', '~', '~~', '~..', 'ä €/😀', '%2F', 'a b?c#d@-1', 'now@now'];
  const large = numbers(30).map((number) => String(number % 10).repeat(30_000));
  for (const id of ids) {
    const chunks = ['\ud83d', '\ude00', '\0\u2028"\\', ...(id ? [id] : large)];
    const isWhole = (text) => assert.ok(text === chunks.join(''), `the answer ${id}`);
    const source = new Source(chunks);
    const stream = await context.resumableStream(id, source.make);
    const resumed = await context.resumeExistingStream(id);
    source.finish();
    isWhole(await textOf(stream));
    isWhole(await textOf(resumed));
  }
});

test('a refusal is an error of the reader, and ends the source', TIMEOUT, async () => {
  const source = new Source(['x'.repeat(17 * 1024 * 1024)]);
  const reader = new Reader(await context.resumableStream('large', source.make));
  source.say();
  assert.equal((await reader.failure()).status, 413);
  await waitFor('the source is cancelled', () => source.isCancelled);
  await assert.rejects(contextOf({ keyPrefix: 'a//b' }).resumableStream('x', source.make), { code: 'bad_path' });
});

test('the reader who began an answer learns that its end is not stored', TIMEOUT, async () => {
  let isRefused = false;
  const fetchOrRefuse = async (url, init) => {
    if (!new Headers(init.headers).has('Stream-Closed')) return fetch(url, init);
    isRefused = true;
    return Response.json({ error: { code: 'expired', message: 'the token has ended' } }, { status: 401 });
  };
  const source = new Source(CHUNKS);
  const first = new Reader(await contextOf({ fetch: fetchOrRefuse, producerTimeout: 1 }).resumableStream('no-end', source.make));
  source.finish();
  assert.equal((await first.failure()).code, 'expired');
  assert.equal(isRefused, true);
  assert.deepEqual(first.chunks, CHUNKS);
  const other = new Reader(await context.resumeExistingStream('no-end'));
  assert.equal((await other.failure()).code, 'abandoned');
});

test('an answer is closed when the reader who began it has its end', TIMEOUT, async () => {
  let hold;
  const held = new Promise((resolve) => (hold = resolve));
  let isClosing = false;
  const holding = async (url, init) => {
    if (new Headers(init.headers).has('Stream-Closed')) {
      isClosing = true;
      await held;
    }
    return fetch(url, init);
  };
  const source = new Source(CHUNKS);
  const first = new Reader(await contextOf({ fetch: holding }).resumableStream('closed-first', source.make));
  let hasEnded = false;
  const ended = first.all().then(() => (hasEnded = true));
  source.finish();
  await first.has(CHUNKS.length);
  await waitFor('the stream is being closed', () => isClosing);
  await new Promise(setImmediate);
  assert.equal(hasEnded, false);
  hold();
  await ended;
  assert.equal((await stateOf('closed-first'))['stream-closed'], 'true');
});

test('30 answers at a time, with two readers each, over kill -9', TIMEOUT, async () => {
  const answers = await Promise.all(
    numbers(30).map(async (number) => {
      const chunks = numbers(10).map((index) => `${number}.${index} `);
      const source = new Source(chunks);
      const first = new Reader(await context.resumableStream(`many/${number}`, source.make));
      source.say(3);
      const second = new Reader(await context.resumeExistingStream(`many/${number}`));
      return { chunks, source, readers: [first, second] };
    }),
  );
  await answers[15].readers[1].has(3);
  const restarted = server.restart('kill');
  for (const { source } of answers) source.say(3);
  await restarted;
  for (const { source } of answers) source.finish();
  for (const { chunks, readers } of answers) {
    for (const reader of readers) assert.deepEqual(await reader.all(), chunks);
  }
});

test('a chunk that is no string ends the answer for the first reader, and its stream is abandoned', TIMEOUT, async () => {
  const short = contextOf({ producerTimeout: 1 });
  const first = await short.resumableStream('no-string', () => new ReadableStream({
    start(controller) {
      controller.enqueue(undefined);
    },
  }));
  await assert.rejects(textOf(first), TypeError);
  await waitFor('no heartbeat keeps it open', async () => (await short.hasExistingStream('no-string')) === 'DONE');
});

test('an answer that another one of its id replaces ends with an error that says so', TIMEOUT, async () => {
  const [old, next] = [new Source(CHUNKS), new Source(CHUNKS)];
  const first = new Reader(await context.createNewResumableStream('replaced', old.make));
  old.say(1);
  await first.has(1);
  const second = await context.createNewResumableStream('replaced', next.make);
  old.finish();
  await assert.rejects(first.all(), /another answer of this id has replaced this one/);
  next.finish();
  assert.equal(await textOf(second), TEXT);
});

test('the first reader waits a bounded time for a server that is away', TIMEOUT, async () => {
  const source = new Source(CHUNKS);
  const first = new Reader(await contextOf({ producerTimeout: 2 }).resumableStream('away', source.make));
  source.say(1);
  await first.has(1);
  await server.restart('kill', async () => {
    source.finish();
    await assert.rejects(first.all(), { code: 'not_stored' });
  });
});
