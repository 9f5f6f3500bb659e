// The numbers of a writer: acknowledged means stored, and no record is stored twice, over streams that are created again, other writers of its
// name, and streams without number.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Client } from '@encke/client';
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

test('a named writer that begins again stores what it acknowledges', TIMEOUT, async () => {
  for (const process of numbers(3)) {
    const client = new Client({ base: server.url, producerId: 'again' });
    await client.create('again');
    for (const number of numbers(2)) assert.equal((await client.publish('again', [process, number])).duplicate, false);
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
  await assert.rejects(writers[1].publish('twin', 5), { code: 'closed' });
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

test('a client remembers a bounded number of streams, and repeats no number of one that it has forgotten', () => {
  const { signal } = new AbortController();
  const producers = new Producers('writer');
  const numbersOf = (stream) => Object.values(producers.of(stream).begin()).join('/');
  const busy = producers.of('busy');
  void busy.enqueue(() => NEVER, signal);
  const used = new Set();
  for (let round = 0; round < 3; round += 1) {
    for (let number = 0; number <= PRODUCERS_MAX; number += 1) {
      const key = `${number} ${numbersOf(String(number))}`;
      assert.ok(!used.has(key), `used twice: ${key}`);
      used.add(key);
    }
  }
  assert.equal(used.size, 3 * (PRODUCERS_MAX + 1));
  assert.equal(producers.size, PRODUCERS_MAX);
  assert.equal(producers.of('busy'), busy, 'one that has something to do stays');
  const fixed = new Producers('writer', 7);
  const first = fixed.of('0');
  for (let number = 1; number <= PRODUCERS_MAX; number += 1) fixed.of(String(number));
  assert.equal(fixed.of('0'), first, 'the numbers of a fixed epoch cannot begin again');
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
