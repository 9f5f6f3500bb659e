// The package `resumable-stream` over `createPubSub`, and the operations of Redis that it needs.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '@encke/client';
import { createPubSub } from '@encke/resumable-stream/pubsub';
import generic from 'resumable-stream/generic';
import { waitFor } from '../../../tests/web/wait.mjs';
import { numbers, Server } from '../../js/test/server.mjs';
import { inProcess, losing, Reader, Source, textOf, untilAcknowledged } from './answers.mjs';

const TIMEOUT = { timeout: 120_000 };
const PROCESS = new URL('answer-process.mjs', import.meta.url);
const CHUNKS = ['An', ' answer', ' of', '\r\nsome \n', ' tokens', '.'];
const TEXT = CHUNKS.join('');

let server;

before(async () => {
  server = await Server.start();
});
after(() => server?.end());

const pubSubOf = (options) => createPubSub({ base: server.url, ...options });
/** A process of an application has one of these. */
function contextOf(options) {
  const context = generic.createResumableStreamContext({ waitUntil: null, ...pubSubOf(options) });
  const again = (name) => (...args) => untilAcknowledged(() => context[name](...args));
  return { ...context, resumableStream: again('resumableStream'), resumeExistingStream: again('resumeExistingStream') };
}

test('readers that come at any time have the whole answer, and nothing but its key is left', TIMEOUT, async () => {
  const prefix = 'left';
  const [context, other] = [contextOf({ prefix }), contextOf({ prefix })];
  const source = new Source(CHUNKS);
  assert.equal(await context.hasExistingStream('a'), null);
  assert.equal(await context.resumeExistingStream('a'), undefined);
  const first = new Reader(await context.resumableStream('a', source.make));
  source.say(2);
  await first.has(2);
  assert.equal(await other.hasExistingStream('a'), true);
  const [second, third] = (await Promise.all([other.resumableStream('a', source.make), other.resumeExistingStream('a', 4)])).map((stream) => new Reader(stream));
  source.finish();
  assert.deepEqual(await first.all(), CHUNKS);
  assert.equal((await second.all()).join(''), TEXT);
  assert.equal((await third.all()).join(''), TEXT.slice(4));
  for (const { hasExistingStream, resumableStream, resumeExistingStream } of [context, other]) {
    assert.equal(await hasExistingStream('a'), 'DONE');
    assert.equal(await resumableStream('a', source.make), null);
    assert.equal(await resumeExistingStream('a'), null);
  }
  assert.equal(source.makes, 1);
  await waitFor('the channels are deleted', async () => {
    const { body } = await server.request('GET', `/v1/stream?prefix=${prefix}/`);
    return JSON.parse(body).streams.map(({ name }) => name).join() === `${prefix}/keys/resumable-stream:rs:sentinel:a`;
  });
});

test('of two callers that begin an answer at the same time one makes it, and both have it', TIMEOUT, async () => {
  const contexts = [contextOf(), contextOf()];
  await Promise.all(
    numbers(20).map(async (number) => {
      const source = new Source(CHUNKS);
      const streams = await Promise.all(contexts.map((context) => context.resumableStream(`at-once/${number}`, source.make)));
      source.finish();
      for (const stream of streams) assert.equal(await textOf(stream), TEXT);
      assert.equal(source.makes, 1);
    }),
  );
});

test('an answer goes on over kill -9 of the server, with each chunk once', TIMEOUT, async () => {
  const chunks = numbers(40).map((number) => ` ${number}`);
  const source = new Source(chunks);
  const first = new Reader(await contextOf().resumableStream('killed', source.make));
  source.say(5);
  await first.has(5);
  const readers = [new Reader(await contextOf().resumeExistingStream('killed')), new Reader(await contextOf().resumeExistingStream('killed'))];
  source.say(5);
  await first.has(6);
  const restarted = server.restart('kill');
  source.say(10);
  await restarted;
  source.finish();
  assert.deepEqual(await first.all(), chunks);
  for (const reader of readers) assert.equal((await reader.all()).join(''), chunks.join(''));
});

test('another process resumes an answer', TIMEOUT, async () => {
  const writer = inProcess(PROCESS, 'pubsub', 'write', server.url, 'process', 'one', 'two', 'three');
  writer.child.stdin.write('..');
  await writer.reader.has(2);
  const reader = inProcess(PROCESS, 'pubsub', 'read', server.url, 'process');
  await reader.reader.has(1);
  const here = await contextOf().resumeExistingStream('process', 3);
  writer.child.stdin.end('.');
  assert.deepEqual(await writer.reader.all(), ['one', 'two', 'three', { end: 'done' }]);
  assert.deepEqual(await reader.reader.all(), ['onetwo', 'three', { end: 'done' }]);
  assert.equal(await textOf(here), 'twothree');
});

test('many answers at a time', TIMEOUT, async () => {
  const [context, other] = [contextOf(), contextOf()];
  await Promise.all(
    numbers(15).map(async (number) => {
      const source = new Source(CHUNKS);
      const first = await context.resumableStream(`many/${number}`, source.make);
      source.say(2);
      const second = await other.resumeExistingStream(`many/${number}`);
      source.finish();
      assert.equal(await textOf(first), TEXT);
      assert.equal(await textOf(second), TEXT);
    }),
  );
});

test('messages reach their channel once and in order, over lost responses', TIMEOUT, async () => {
  const fetch = losing(({ method }) => method === 'PUT', ({ method }) => method === 'POST', ({ method }) => method === 'DELETE');
  const { publisher, subscriber } = pubSubOf({ fetch });
  const other = pubSubOf({ onError: () => {} });
  const [got, ofOther] = [[], []];
  await subscriber.subscribe('a', (message) => got.push(message));
  await other.subscriber.subscribe('a', (message) => {
    ofOther.push(message);
    throw new Error('a callback that fails');
  });
  const messages = numbers(50).map(String);
  assert.deepEqual(await Promise.all(messages.map((message) => publisher.publish('a', message))), messages.map(() => 1));
  await waitFor('all messages', () => ofOther.length >= 50 && got.length >= 50);
  assert.deepEqual(got, messages);
  assert.deepEqual(ofOther, messages);
  // The channel is gone for all, and comes back for those that are left.
  await subscriber.unsubscribe('a');
  await waitFor('the other one gets messages again', async () => {
    await other.publisher.publish('a', 'again');
    return ofOther.includes('again');
  });
  assert.ok(!got.includes('again'));
  await other.subscriber.unsubscribe('a');
  assert.equal(await publisher.publish('a', 'x'), 0);
});

test('a message waits for the first subscriber of its channel, and not for ever', TIMEOUT, async (t) => {
  let nowMs = 0;
  const clock = t.mock.method(performance, 'now', () => nowMs);
  try {
    let missed = 0;
    const fetch = async (url, init) => {
      const response = await globalThis.fetch(url, init);
      if (response.status === 404) missed += 1;
      return response;
    };
    const { publisher, subscriber } = pubSubOf({ fetch });
    const early = publisher.publish('late', 'early');
    await waitFor('the channel is missed', () => missed > 1);
    const got = [];
    await subscriber.subscribe('late', (message) => got.push(message));
    assert.equal(await early, 1);
    await waitFor('the message', () => got.includes('early'));
    await subscriber.unsubscribe('late');
    missed = 0;
    const unheard = publisher.publish('unheard', 'x');
    await waitFor('the channel is missed', () => missed > 0);
    nowMs = 1_000;
    assert.equal(await unheard, 0);
    // It has waited once.
    assert.equal(await publisher.publish('unheard', 'x'), 0);
  } finally {
    clock.mock.restore();
  }
});

test('messages reach a channel that was ended and is subscribed to again', TIMEOUT, async () => {
  const { publisher, subscriber } = pubSubOf();
  for (const round of [0, 1, 2]) {
    const got = [];
    await subscriber.subscribe('again', (message) => got.push(message));
    for (const number of numbers(3)) assert.equal(await publisher.publish('again', `${round}/${number}`), 1);
    await waitFor('the messages', () => got.length === 3);
    assert.deepEqual(got, numbers(3).map((number) => `${round}/${number}`));
    await subscriber.unsubscribe('again');
  }
});

test('values: set, get, and numbers that are counted once', TIMEOUT, async () => {
  const [a, b] = [pubSubOf({ ttl: 100 }), pubSubOf()].map(({ publisher }) => publisher);
  assert.equal(await a.get('key'), null);
  const sums = await Promise.all(numbers(20).flatMap(() => [a.incr('key'), b.incr('key')]));
  assert.deepEqual(sums.toSorted((one, other) => one - other), numbers(41).slice(1));
  assert.equal(await b.get('key'), '40');
  assert.equal(await a.set('key', 'DONE', { EX: 100 }), 'OK');
  assert.equal(await b.get('key'), 'DONE');
  await assert.rejects(b.incr('key'), /ERR value is not an integer or out of range/);
  await assert.rejects(a.set('key', 'x', { EX: 101 }), RangeError);
  // Operations of one publisher keep their order.
  const results = await Promise.all([a.set('order', '1'), a.incr('order'), a.get('order'), a.set('order', 'x'), a.get('order')]);
  assert.deepEqual(results, ['OK', 2, '2', 'OK', 'x']);
  // A value that has ended is none.
  await a.set('ended', '7', { EX: -1 });
  assert.equal(await a.get('ended'), null);
  assert.equal(await a.incr('ended'), 1);
  assert.equal(await a.get('ended'), '1');
  assert.equal((await server.read('pubsub/keys/key')).length, 1);
});

test('operations whose responses are lost have their effect once', TIMEOUT, async () => {
  const lost = () => losing(({ method }) => method === 'PUT', ({ method }) => method === 'POST');
  const { publisher } = pubSubOf({ fetch: lost() });
  assert.deepEqual([await publisher.incr('lost'), await publisher.incr('lost'), await publisher.incr('lost')], [1, 2, 3]);
  await pubSubOf({ fetch: lost() }).publisher.set('lost/set', 'value');
  assert.equal(await publisher.get('lost/set'), 'value');
});

test('a refusal is an error of the caller, or of the subscription', TIMEOUT, async () => {
  const errors = [];
  // The subscriber creates its channel again only when another stream has the name.
  let whenTaken = Promise.resolve();
  const fetch = async (url, init) => {
    if (init.method === 'PUT') await whenTaken;
    return globalThis.fetch(url, init);
  };
  const { publisher, subscriber } = pubSubOf({ fetch, onError: (error) => errors.push(error) });
  await assert.rejects(publisher.set('\n', 'x'), { code: 'bad_path' });
  await subscriber.subscribe('no-text', () => {});
  let noteTaken;
  whenTaken = new Promise((resolve) => (noteTaken = resolve));
  await server.delete('pubsub/channels/no-text');
  await server.request('PUT', '/v1/stream/pubsub/channels/no-text', { headers: { 'Content-Type': 'text/plain', 'Stream-TTL': '9' } });
  noteTaken();
  await waitFor('the error', () => errors.length > 0);
  assert.equal(errors[0].code, 'config_differs');
  await new Client({ base: server.url }).close('pubsub/channels/no-text');
});
