// @durable-streams/state: changes of rows in a stream of Encke, as collections of TanStack DB and as state without it. The application writes
// with the official client.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DurableStream } from '@durable-streams/client';
import { MaterializedState, createStateSchema } from '@durable-streams/state';
import { createStreamDB } from '@durable-streams/state/db';
import { waitFor } from '../wait.mjs';
import { TOKENS } from './answer.mjs';
import { isPending } from './requests.mjs';
import { Server } from './server.mjs';

const CONTENT_TYPE = 'application/json';
/** A schema that takes every row. */
const ANY_ROW = { '~standard': { version: 1, vendor: 'test', validate: (value) => ({ value }) } };
const SCHEMA = createStateSchema({ tokens: { schema: ANY_ROW, type: 'token', primaryKey: 'id' } });
const KEYS = TOKENS.map((_, index) => String(index));
const NAME = 'state/ann/rows';
const OWN = ['/v1/stream/state/{sub}/**'];
const EVERYTHING = ['/v1/stream/**'];

const LIVE = ['sse', 'long-poll'];
const MODES = ['without access control', 'with a token', 'with a read URL'];

/** A stream of rows: `writer` appends to it, `source` is how collections read it. */
async function rowStream(server, mode) {
  const url = server.stream(NAME);
  if (mode === 'without access control') {
    return { url, writer: await DurableStream.create({ url, contentType: CONTENT_TYPE, warnOnHttp: false }), source: { url } };
  }
  const headers = await server.bearer('ann', { create: OWN, append: OWN, read: OWN });
  const fields = { 'Content-Type': CONTENT_TYPE, 'Encke-Owner': 'self', 'Encke-Read-URL': '600' };
  const response = await fetch(url, { method: 'PUT', headers: { ...headers, ...fields } });
  assert.equal(response.status, 201);
  const writer = new DurableStream({ url, contentType: CONTENT_TYPE, headers, warnOnHttp: false });
  const readUrl = response.headers.get('Encke-Read-URL');
  // The package asks for the headers of each request.
  const bearer = { Authorization: async () => (await server.bearer('ann', { read: OWN })).Authorization };
  return { url, writer, source: mode === 'with a token' ? { url, headers: bearer } : { url: readUrl } };
}

/** Appends the row of a token. */
const insert = (writer, index) => writer.append(JSON.stringify(SCHEMA.tokens.insert({ value: { id: KEYS[index], text: TOKENS[index] } })));

/** Collections that follow a stream until the test ends. */
class Collections {
  /** The keys of the changes, as they have come. */
  keys = [];
  #db;

  constructor(t, source, live) {
    const streamOptions = { ...source, contentType: CONTENT_TYPE, warnOnHttp: false };
    this.#db = createStreamDB({ streamOptions, state: SCHEMA, live, onEvent: (event) => this.keys.push(event.key) });
    t.after(() => this.#db.close());
  }

  /** Waits until the collections have what was there when they began. */
  preload() {
    return this.#db.preload();
  }

  /** Waits until that many changes have come. */
  has(count) {
    return waitFor(`${count} changes`, () => this.keys.length >= count);
  }

  /** Each change came once and in order, and the rows are those of the tokens. */
  assertWhole() {
    assert.deepEqual(this.keys, KEYS);
    const rows = this.#db.collections.tokens.toArray.sort((a, b) => a.id - b.id);
    assert.deepEqual(rows.map(({ id, text }) => [id, text]), KEYS.map((id, index) => [id, TOKENS[index]]));
  }
}

for (const mode of MODES) {
  const access = mode !== 'without access control';
  for (const live of LIVE) {
    test(`two readers get rows live over a restart of the server, a third one late, each row once: ${live}, ${mode}`, async (t) => {
      const server = await Server.start(t, { access });
      const { writer, source } = await rowStream(server, mode);
      await insert(writer, 0);
      const readers = [new Collections(t, source, live), new Collections(t, source, live)];
      for (const reader of readers) {
        await reader.preload();
        assert.deepEqual(reader.keys, KEYS.slice(0, 1));
      }
      for (const index of [1, 2]) {
        await insert(writer, index);
        for (const reader of readers) await reader.has(index + 1);
      }
      // This append is under way when the server stops, or comes when it has.
      const appended = insert(writer, 3);
      await server.stop();
      await server.startAgain();
      await appended;
      for (let index = 4; index < TOKENS.length; index += 1) {
        await insert(writer, index);
        for (const reader of readers) await reader.has(index + 1);
      }
      await writer.close();
      const late = new Collections(t, source, live);
      await late.preload();
      for (const reader of [...readers, late]) reader.assertWhole();
    });
  }
}

test('long polls go on by themselves after a crash of the server, each row once', async (t) => {
  const server = await Server.start(t);
  const { url, writer, source } = await rowStream(server, 'without access control');
  for (const index of [0, 1]) await insert(writer, index);
  const reader = new Collections(t, source, 'long-poll');
  await reader.preload();
  await waitFor('a long poll', () => isPending('GET', url));
  await server.kill();
  const appended = insert(writer, 2);
  await server.startAgain();
  await appended;
  for (let index = 3; index < TOKENS.length; index += 1) await insert(writer, index);
  await writer.close();
  await reader.has(TOKENS.length);
  reader.assertWhole();
});

test('state is resumed behind what it has, over a crash of the server', async (t) => {
  const server = await Server.start(t);
  const { writer } = await rowStream(server, 'without access control');
  for (let index = 0; index < 3; index += 1) await insert(writer, index);
  const state = new MaterializedState();
  const first = await writer.stream({ offset: '-1', live: false, json: true });
  for (const event of await first.json()) state.apply(event);
  await server.kill();
  await server.startAgain();
  for (let index = 3; index < TOKENS.length; index += 1) await insert(writer, index);
  const second = await writer.stream({ offset: first.offset, live: false, json: true });
  const events = await second.json();
  assert.deepEqual(events.map((event) => event.key), KEYS.slice(3));
  for (const event of events) state.apply(event);
  assert.deepEqual(KEYS.map((key) => state.get('token', key).text), TOKENS);
});

test('with access control rows are for their owner', async (t) => {
  const server = await Server.start(t, { access: true });
  const { url, writer } = await rowStream(server, 'with a token');
  await insert(writer, 0);
  const stranger = new Collections(t, { url, headers: await server.bearer('bob', { read: EVERYTHING }) }, 'sse');
  await assert.rejects(stranger.preload(), (error) => error.status === 404);
  await assert.rejects(new Collections(t, { url }, 'sse').preload(), (error) => error.status === 401);
});
