// The numbers of a writer: acknowledged means stored, and no record is stored twice, over streams that are created again, other writers of its
// name, and streams without number.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '@encke/client';
import { waitFor } from '../../../tests/web/wait.mjs';
import { PRODUCERS_MAX, Producers } from '../dist/producer.js';
import { APPENDED, CUT, NEVER, withScripted } from './scripted.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

let server;

before(async () => {
  server = await Server.start();
});
after(() => server?.end());

const WRITERS = { 'a random name': {}, 'a name': { producerId: 'named' }, 'a name and an epoch': { producerId: 'fixed', epoch: 3 } };

for (const [kind, options] of Object.entries(WRITERS)) {
  const stream = kind.replaceAll(' ', '-');

  test(`${kind}: a stream that was deleted and created again takes every later publish`, TIMEOUT, async () => {
    const client = new Client({ base: server.url, ...options });
    await client.create(stream);
    for (let round = 0; round < 3; round += 1) {
      for (const number of numbers(3)) assert.equal((await client.publish(stream, number)).duplicate, false);
      await server.delete(stream);
      await client.create(stream);
    }
    await Promise.all(numbers(5).map((number) => client.publish(stream, number)));
    await client.publish(stream, 5);
    assert.deepEqual(await server.read(stream), numbers(6));
  });

  test(`${kind}: after a lost response, a stream that was created again does not get a record twice`, TIMEOUT, async () => {
    let loses = false;
    const client = new Client({
      base: server.url,
      ...options,
      fetch: async (url, init) => {
        const response = await fetch(url, init);
        if (!loses) return response;
        loses = false;
        await server.delete(`${stream}-lost`);
        await server.create(`${stream}-lost`);
        throw new TypeError('the response is lost');
      },
    });
    await client.create(`${stream}-lost`);
    await client.publish(`${stream}-lost`, 0);
    loses = true;
    await assert.rejects(client.publish(`${stream}-lost`, 1), { code: 'sequence_gap', mayBeDone: true });
    assert.deepEqual(await server.read(`${stream}-lost`), []);
    if (options.epoch === undefined) await client.publish(`${stream}-lost`, 2);
    else await assert.rejects(client.publish(`${stream}-lost`, 2), { code: 'uncertain', message: /higher epoch/ });
    assert.deepEqual(await server.read(`${stream}-lost`), options.epoch === undefined ? [2] : []);
  });
}

test('appends of a named writer that starts again are stored once each', TIMEOUT, async () => {
  for (const start of numbers(3)) {
    const client = new Client({ base: server.url, producerId: 'again' });
    await client.create('again');
    for (const number of numbers(2)) assert.equal((await client.publish('again', [start, number])).duplicate, false);
  }
  assert.deepEqual(await server.read('again'), [0, 0, 0, 1, 1, 0, 1, 1, 2, 0, 2, 1]);
});

test('a writer with the name and the epoch of another one gets an error, and no acknowledgement', TIMEOUT, async () => {
  const writers = numbers(2).map(() => new Client({ base: server.url, producerId: 'twin', epoch: 1 }));
  await writers[0].create('twin');
  for (const number of numbers(3)) await writers[0].publish('twin', number);
  for (const data of ['lost?', 'and again?']) await assert.rejects(writers[1].publish('twin', data), { code: 'producer_in_use', message: /twin .*epoch 1/ });
  await assert.rejects(writers[1].close('twin', 'done', { data: 'lost?' }), { code: 'producer_in_use' });
  assert.deepEqual(await server.read('twin'), numbers(3));
  await writers[0].publish('twin', 3);
  await writers[0].close('twin', 'done', { data: 4 });
  await assert.rejects(writers[1].publish('twin', 5), { code: 'producer_in_use' });
  assert.deepEqual(await server.read('twin'), numbers(5));
});

test('an acknowledgement of another number than the repeated one is an error', TIMEOUT, async () => {
  const answers = [CUT, { status: 204, headers: { ...APPENDED.headers, 'Producer-Seq': '7' } }];
  await withScripted((_, number) => answers[number - 1], async ({ url }) => {
    await assert.rejects(new Client({ base: url }).publish('s', 1), { code: 'producer_in_use', mayBeDone: true });
  });
});

test('what is stored is the data of the call, whatever becomes of its buffer', TIMEOUT, async () => {
  const forms = {
    bytes: (bytes) => bytes,
    shared: (bytes) => bytes,
    buffer: (bytes) => Buffer.from(bytes.buffer),
    arraybuffer: (bytes) => bytes.buffer,
    dataview: (bytes) => new DataView(bytes.buffer),
    words: (bytes) => new Uint16Array(bytes.buffer),
    blob: (bytes) => new Blob([bytes]),
  };
  const contentType = 'application/octet-stream';
  for (const [stream, form] of Object.entries(forms)) {
    const client = new Client({ base: server.url });
    const bytes = new Uint8Array(stream === 'shared' ? new SharedArrayBuffer(4) : new ArrayBuffer(4));
    const dataOf = (digit) => form(bytes.fill(digit.charCodeAt()));
    const created = client.create(stream, { contentType, data: dataOf('0') });
    bytes.fill(57);
    await created;
    const calls = ['1', '2', '3', '4'].map((digit) => client.publish(stream, dataOf(digit), { contentType }));
    calls.push(client.close(stream, 'done', { contentType, data: dataOf('5') }));
    bytes.fill(57);
    await Promise.all(calls);
    const { body } = await server.request('GET', `/v1/stream/${stream}?offset=-1`);
    assert.equal(String(body), '000011112222333344445555', stream);
  }
  const message = { text: 'now' };
  const client = new Client({ base: server.url });
  await client.create('json');
  const published = client.publish('json', message);
  message.text = 'later';
  await published;
  assert.deepEqual(await server.read('json'), [{ text: 'now' }]);
});

test('data that no body can have is refused, and changes nothing', TIMEOUT, async () => {
  const client = new Client({ base: server.url });
  await client.create('refused', { contentType: 'text/plain' });
  for (const data of [undefined, 1, {}, [1], new URLSearchParams('a=1'), new ReadableStream()]) {
    await assert.rejects(client.publish('refused', data, { contentType: 'text/plain' }), { name: 'TypeError', message: /a string, bytes or a Blob, not/ });
  }
  await assert.rejects(client.publish('refused', undefined), { name: 'TypeError', message: /a value of JSON/ });
  await client.publish('refused', 'text', { contentType: 'text/plain' });
  assert.equal(String((await server.request('GET', '/v1/stream/refused?offset=-1')).body), 'text');
});

/** A network that repeats the requests for which `repeats` returns true, and shows the last response, as browsers and proxies do. */
const repeating = (repeats) => async (url, init) => {
  if (repeats(init)) await fetch(url, init);
  return fetch(url, init);
};

for (const [kind, options] of Object.entries(WRITERS)) {
  test(`${kind}: appends that the network repeats are stored once, and acknowledged`, TIMEOUT, async () => {
    const stream = `${kind.replaceAll(' ', '-')}-repeated`;
    let posts = 0;
    // The first append of a fixed epoch could be that of another writer.
    const client = new Client({ base: server.url, ...options, fetch: repeating(({ method }) => method === 'POST' && posts++ >= (options.epoch ? 1 : 0)) });
    await client.create(stream);
    const duplicates = [];
    for (const number of numbers(4)) duplicates.push((await client.publish(stream, number)).duplicate);
    await client.close(stream, 'done', { data: 4 });
    assert.deepEqual(duplicates, [options.epoch === undefined, true, true, true]);
    assert.deepEqual(await server.read(stream), numbers(5));
  });
}

test('a number that another writer has is not sent again, in a fixed epoch also after a lost response', TIMEOUT, async () => {
  let loses = false;
  const fetchLosing = async (url, init) => {
    const response = await fetch(url, init);
    if (!loses) return response;
    loses = false;
    throw new TypeError('the response is lost');
  };
  const writers = numbers(2).map(() => new Client({ base: server.url, producerId: 'taken', epoch: 1, fetch: fetchLosing }));
  await writers[0].create('taken');
  await writers[0].publish('taken', 0);
  await assert.rejects(writers[1].publish('taken', 'other'), { code: 'producer_in_use', mayBeDone: true });
  loses = true;
  await assert.rejects(writers[1].publish('taken', 'another'), { code: 'producer_in_use' });
  assert.equal(loses, true, 'nothing is sent');
  loses = false;
  assert.deepEqual(await server.read('taken'), [0]);
  // A random name has another epoch then.
  const answers = [{ status: 204, headers: { ...APPENDED.headers, 'Producer-Seq': '7' } }, APPENDED];
  await withScripted((_, number) => answers[number - 1], async ({ url, requests }) => {
    const client = new Client({ base: url });
    await assert.rejects(client.publish('s', 1), { code: 'producer_in_use', mayBeDone: false });
    await client.publish('s', 2);
    assert.deepEqual(requests.map(({ headers }) => `${headers['producer-epoch']}/${headers['producer-seq']}`), ['0/0', '1/0']);
  });
});

test('closing with data is refused to a second writer of the epoch, whose data is not stored', TIMEOUT, async () => {
  const writers = numbers(2).map(() => new Client({ base: server.url, producerId: 'closing', epoch: 1 }));
  await writers[0].create('closing');
  await writers[0].close('closing', 'done', { data: 'first' });
  await assert.rejects(writers[1].close('closing', 'done', { data: 'second' }), { code: 'producer_in_use' });
  assert.deepEqual(await server.read('closing'), ['first']);
  await writers[0].create('empty', { contentType: 'text/plain' });
  for (const data of ['', new Uint8Array(), new Blob([])]) await writers[1].close('empty', 'done', { data, contentType: 'text/plain' });
});

for (const epochs of [[undefined, undefined], [1, 2]]) {
  test(`a writer with a later epoch ${epochs[0] ? 'of its own ' : ''}continues in a stream that was created again and has an earlier writer`, TIMEOUT, async () => {
    const stream = `epochs-${epochs[0] ?? 'clock'}`;
    const earlier = new Client({ base: server.url, producerId: 'epochs', epoch: epochs[0] });
    const begun = Date.now();
    await waitFor('the clock gives a later epoch', () => Date.now() > begun + 1);
    const later = new Client({ base: server.url, producerId: 'epochs', epoch: epochs[1] });
    await later.create(stream);
    for (const number of numbers(2)) await later.publish(stream, number);
    await server.delete(stream);
    await server.create(stream);
    await earlier.publish(stream, 'earlier');
    for (const number of numbers(2)) await later.publish(stream, number);
    assert.deepEqual(await server.read(stream), ['earlier', 0, 1]);
  });
}

test('closing without data has its place between the appends', TIMEOUT, async () => {
  const answers = [];
  const answer = ({ headers }) => (headers['stream-closed'] ? { status: 204, headers: { 'Stream-Closed': 'true' } } : APPENDED);
  await withScripted((request) => new Promise((resolve) => answers.push(() => resolve(answer(request)))), async ({ url, requests }) => {
    const client = new Client({ base: url });
    const calls = [client.publish('s', 1), client.close('s'), client.publish('s', 2)];
    for (const number of [1, 2, 3]) {
      await waitFor('the next request', () => answers.length === number);
      answers[number - 1]();
      await calls[number - 1];
    }
    assert.deepEqual(requests.map(({ text, headers }) => [text, headers['producer-seq']]), [['1', '0'], ['', undefined], ['2', '1']]);
  });
});

/** Each call begins an operation of another stream that ends with `end`. */
function occupy(producers, count) {
  let end;
  const over = new Promise((resolve) => (end = resolve));
  const all = numbers(count).map((number) => producers.enqueue(`busy/${number}`, () => over, new AbortController().signal));
  return { end: () => (end(), Promise.all(all)) };
}

test('the operations of one stream keep their order while all other streams have some', async () => {
  const producers = new Producers();
  const { signal } = new AbortController();
  const busy = occupy(producers, PRODUCERS_MAX);
  const order = [];
  const held = [];
  const operation = (number) => async (producer) => {
    order.push([number, ...Object.values(producer.begin()).slice(1).map(Number)]);
    await new Promise((resolve) => held.push(resolve));
    producer.acknowledged();
  };
  const all = numbers(3).map((number) => producers.enqueue('s', operation(number), signal));
  for (const number of numbers(3)) {
    await waitFor('the next operation', () => held.length > number);
    assert.equal(order.length, number + 1, 'one at a time');
    held[number]();
    await all[number];
  }
  assert.deepEqual(order, [[0, 0, 0], [1, 0, 1], [2, 0, 2]]);
  await busy.end();
  await waitFor('only the bounded number is left', () => producers.size === PRODUCERS_MAX);
});

test('an append takes the same time however many streams are busy', async () => {
  const iterator = Object.getPrototypeOf(new Map().entries());
  const { next } = iterator;
  let steps = 0;
  iterator.next = function () {
    steps += 1;
    return next.call(this);
  };
  try {
    const busy = occupy(new Producers(), 5 * PRODUCERS_MAX);
    await busy.end();
  } finally {
    iterator.next = next;
  }
  // The iterations begin at the calls and at the ends, and each step but the last of one forgets a stream.
  assert.ok(steps > 0 && steps <= 4 * 5 * PRODUCERS_MAX, `${steps} steps`);
});

test('a client remembers a bounded number of streams, and repeats no number of one that it has forgotten', async () => {
  const { signal } = new AbortController();
  const producers = new Producers('writer');
  const numbersOf = (stream, from = producers) => from.enqueue(stream, async (producer) => Object.values(producer.begin()).join('/'), signal);
  let busy;
  void producers.enqueue('busy', (producer) => ((busy = producer), NEVER), signal);
  const used = new Set();
  for (let round = 0; round < 3; round += 1) {
    for (let number = 0; number <= PRODUCERS_MAX; number += 1) {
      const key = `${number} ${await numbersOf(String(number))}`;
      assert.ok(!used.has(key), `used twice: ${key}`);
      used.add(key);
    }
  }
  assert.equal(used.size, 3 * (PRODUCERS_MAX + 1));
  await waitFor('the last operation is over', () => producers.size === PRODUCERS_MAX);
  busy.acknowledged();
  assert.equal(busy.waiting, 1);
  void producers.enqueue('busy', () => NEVER, signal);
  assert.equal(busy.waiting, 2, 'one that has something to do stays');
  const fixed = new Producers('writer', 7);
  await fixed.enqueue('0', async (producer) => producer.acknowledged(), signal);
  for (let number = 1; number <= PRODUCERS_MAX; number += 1) await numbersOf(String(number), fixed);
  assert.equal(await numbersOf('0', fixed), 'writer/7/1', 'the numbers of a fixed epoch cannot begin again');
});

test('appends to more streams than a client remembers are stored once each', TIMEOUT, async () => {
  const client = new Client({ base: server.url });
  const streams = numbers(PRODUCERS_MAX + 200).map((number) => `many/${number}`);
  for (const stream of streams) await server.create(stream, { 'Encke-Ack': 'accepted' });
  for (let round = 0; round < 2; round += 1) {
    for (let at = 0; at < streams.length; at += 100) await Promise.all(streams.slice(at, at + 100).map((stream) => client.publish(stream, round)));
  }
  for (const stream of streams) assert.deepEqual(await server.read(stream), [0, 1]);
});
