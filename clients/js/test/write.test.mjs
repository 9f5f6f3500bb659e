// Creating, publishing, stopping and closing, in Node: appends are stored once, over lost responses and kill -9.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client, EnckeError } from '@encke/client';
import { waitFor } from '../../../tests/web/wait.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

let server;

before(async () => {
  server = await Server.start();
});
after(() => server?.end());

/** A fetch whose network loses requests and responses in turn. */
function lossy() {
  let count = 0;
  return async (url, init) => {
    count += 1;
    if (count % 4 === 1) throw new TypeError('the request is lost');
    const response = await fetch(url, init);
    if (count % 4 === 3) throw new TypeError('the response is lost');
    return response;
  };
}

test('each publish is stored once and in order, over lost responses and kill -9', TIMEOUT, async () => {
  const client = new Client({ base: server.url, fetch: lossy() });
  assert.equal((await client.create('once')).created, true);
  assert.equal((await client.create('once')).created, false);
  let done = 0;
  const published = numbers(12).map((number) => client.publish('once', number).then((outcome) => {
    done += 1;
    return outcome;
  }));
  await waitFor('some are published', () => done > 3);
  await server.restart('kill');
  const outcomes = await Promise.all(published);
  assert.deepEqual(await server.read('once'), numbers(12));
  assert.ok(outcomes.some(({ duplicate }) => duplicate), 'a response was lost');
  await client.close('once', 'done', { data: 'the last word' });
  assert.deepEqual((await server.read('once')).at(-1), 'the last word');
});

test('a publish that is given up leaves the writer able to write', TIMEOUT, async () => {
  let isCut = false;
  const answered = [];
  const client = new Client({
    base: server.url,
    fetch: async (url, init) => {
      const response = await fetch(url, isCut ? { ...init, signal: undefined } : init);
      if (!isCut) return response;
      answered.push(response.status);
      throw new TypeError('the response is lost');
    },
  });
  await client.create('given-up');
  await client.publish('given-up', 0);
  isCut = true;
  const controller = new AbortController();
  const lost = client.publish('given-up', 1, { signal: controller.signal });
  await waitFor('it is stored', () => answered.length > 0);
  controller.abort();
  await assert.rejects(lost, { name: 'AbortError' });
  isCut = false;
  await client.publish('given-up', 2);
  assert.deepEqual(await server.read('given-up'), [0, 1, 2]);
});

test('a writer is asked to stop, and a stream that has ended refuses with the reason', TIMEOUT, async () => {
  const client = new Client({ base: server.url });
  await client.create('stopping', { metadata: { title: 'Grüße' }, producerTimeout: 60, data: [0] });
  assert.equal((await client.publish('stopping', 1)).stopRequested, false);
  await new Client({ base: server.url }).stop('stopping');
  assert.equal((await client.publish('stopping', [2, 3])).stopRequested, true);
  await client.close('stopping', 'stopped');
  await client.close('stopping', 'stopped');
  await assert.rejects(client.publish('stopping', 4), (error) => {
    assert.ok(error instanceof EnckeError);
    return error.status === 409 && error.code === 'closed' && error.endReason === 'stopped';
  });
  assert.deepEqual(await server.read('stopping'), [0, 1, 2, 3]);
  const { headers } = await server.request('HEAD', '/v1/stream/stopping');
  assert.deepEqual(JSON.parse(headers['encke-metadata']), { title: 'Grüße' });
  await assert.rejects(client.publish('stopping', 'text', { contentType: 'text/plain' }), EnckeError);
  await assert.rejects(client.create('stopping', { contentType: 'text/plain' }), { status: 409, code: 'config_differs' });
});

test('only application/json is encoded as JSON', TIMEOUT, async () => {
  const client = new Client({ base: server.url });
  for (const [index, contentType] of ['application/json-seq', 'application/json-patch+json', 'application/jsonx'].entries()) {
    await client.create(`type/${index}`, { contentType, data: 'a' });
    await client.publish(`type/${index}`, 'b', { contentType });
    assert.equal(String((await server.request('GET', `/v1/stream/type/${index}?offset=-1`)).body), 'ab', contentType);
  }
  await client.create('type/json', { contentType: ' Application/JSON ; charset=utf-8', data: 'a' });
  assert.deepEqual(await server.read('type/json'), ['a']);
});

test('a new writer of the same name ends the old one', TIMEOUT, async () => {
  const [first, second] = [0, 1].map((epoch) => new Client({ base: server.url, producerId: 'writer', epoch }));
  await first.create('writers');
  await first.publish('writers', 0);
  await second.publish('writers', 1);
  await assert.rejects(first.publish('writers', 2), { status: 403, code: 'stale_epoch' });
  assert.deepEqual(await server.read('writers'), [0, 1]);
});
