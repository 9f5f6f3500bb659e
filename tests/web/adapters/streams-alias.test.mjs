// What the production adapter of TanStack AI (@tanstack/ai-durable-stream, which is not in the registry) asks of a server, in plain requests: a run is the
// stream at `/streams/` and its name in one segment. Grants name it by `/v1/stream/`.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import { waitFor } from '../wait.mjs';
import { TOKENS } from './answer.mjs';
import { Server, readAll } from './server.mjs';

const RUN = 'chat/ann/run';
const OWN = ['/v1/stream/chat/{sub}/**'];
const JSON_TYPE = { 'Content-Type': 'application/json' };
const RECORDS = TOKENS.map((delta, index) => ({ v: 1, seq: index + 1, chunk: { type: 'TEXT_MESSAGE_CONTENT', messageId: 'answer', delta } }));

/** A server with access control, and a run of Ann's. */
async function startRun(t) {
  const server = await Server.start(t, { access: true });
  const url = `${server.url}/streams/${encodeURIComponent(RUN)}`;
  const headers = await server.bearer('ann', { create: OWN, append: OWN, read: OWN });
  return { server, url, writer: new Writer(url, headers), page: await server.bearer('ann', { read: OWN }) };
}

/** Writes a run as one producer, each batch with a number. */
class Writer {
  #url;
  #headers;
  #producer = randomUUID();
  #batches = 0;
  #batch;

  constructor(url, headers) {
    this.#url = url;
    this.#headers = headers;
  }

  /** Creates the run, or finds it. Returns the status, as all do; a response without an error says where the stream ends. */
  create() {
    return this.#request('PUT', JSON_TYPE);
  }

  /** Appends a batch. */
  append(...records) {
    this.#batch = JSON.stringify(records);
    this.#batches += 1;
    return this.repeat();
  }

  /** Sends the last batch once more, as after a response that was lost. */
  repeat() {
    const producer = { 'Producer-Id': this.#producer, 'Producer-Epoch': '0', 'Producer-Seq': String(this.#batches - 1) };
    return this.#request('POST', { ...JSON_TYPE, ...producer }, this.#batch);
  }

  close() {
    return this.#request('POST', { 'Stream-Closed': 'true' });
  }

  async #request(method, headers, body) {
    const response = await fetch(this.#url, { method, headers: { ...this.#headers, ...headers }, body });
    if (response.ok) assert.ok(response.headers.get('Stream-Next-Offset'), `${method}: the end of the stream`);
    return response.status;
  }
}

/** A page that reads a run, one response after the other. */
class Page {
  /** The records that have come. */
  records = [];
  /** The run has ended. */
  closed = false;
  /** The present response has said that the page has everything. */
  upToDate = false;
  #url;
  #headers;
  #offset;
  #cursor;

  constructor(url, headers, offset = '-1') {
    this.#url = url;
    this.#headers = headers;
    this.#offset = offset;
  }

  /** Where the page would resume. */
  get offset() {
    return this.#offset;
  }

  /** Waits until that many records have come. */
  has(count) {
    return waitFor(`${count} records`, () => this.records.length >= count);
  }

  /** Reads until the response ends. One that ends before the run must have moved the offset or the cursor. */
  async read() {
    this.upToDate = false;
    const query = new URLSearchParams({ offset: this.#offset, live: 'sse', ...(this.#cursor && { cursor: this.#cursor }) });
    const response = await fetch(`${this.#url}?${query}`, { headers: this.#headers });
    assert.equal(response.status, 200);
    const before = [this.#offset, this.#cursor];
    let records = [];
    for await (const { event, data } of events(response.body)) {
      if (event === 'data') {
        records.push(...JSON.parse(data));
        continue;
      }
      assert.equal(event, 'control');
      const control = JSON.parse(data);
      this.records.push(...records);
      records = [];
      this.#offset = control.streamNextOffset;
      this.closed = control.streamClosed === true;
      assert.ok(this.closed || control.streamCursor, 'the cursor of an open run');
      this.#cursor = control.streamCursor;
      this.upToDate ||= control.upToDate === true;
    }
    assert.deepEqual(records, [], 'a control event behind the data');
    if (!this.closed) assert.notDeepEqual([this.#offset, this.#cursor], before, 'the offset or the cursor has moved');
  }
}

/** The events of an event stream. */
async function* events(body) {
  let text = '';
  for await (const part of body.pipeThrough(new TextDecoderStream())) {
    text += part;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const lines = text.slice(0, end).split('\n');
      text = text.slice(end + 2);
      const values = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trim());
      if (values('data').length > 0) yield { event: values('event')[0], data: values('data').join('\n') };
    }
  }
}

test('a run is read live by two pages, resumed in the middle and joined late, each record once', async (t) => {
  const { server, url, writer, page: headers } = await startRun(t);
  assert.equal(await writer.create(), 201);
  const pages = [new Page(url, headers), new Page(url, headers)];
  const ends = pages.map((page) => page.read());
  for (let count = 1; count <= 3; count += 1) {
    assert.equal(await writer.append(RECORDS[count - 1]), 200);
    for (const page of pages) await page.has(count);
  }
  // A producer that comes later finds the run.
  assert.equal(await writer.create(), 200);
  const resumed = new Page(url, headers, pages[0].offset);
  ends.push(resumed.read());
  assert.equal(await writer.append(...RECORDS.slice(3)), 200);
  assert.equal(await writer.repeat(), 204);
  assert.equal(await writer.close(), 204);
  await Promise.all(ends);
  for (const page of pages) assert.deepEqual(page.records, RECORDS);
  assert.deepEqual(resumed.records, RECORDS.slice(3));
  const late = new Page(url, headers);
  await late.read();
  assert.deepEqual(late.records, RECORDS);
  // It is the stream of that name.
  assert.deepEqual((await readAll(server.stream(RUN), headers)).values, RECORDS);
});

test('the response for a run ends in order when the server stops, and the next one continues', async (t) => {
  const { server, url, writer, page: headers } = await startRun(t);
  await writer.create();
  await writer.append(...RECORDS.slice(0, 3));
  const page = new Page(url, headers);
  const first = page.read();
  await page.has(3);
  await server.stop();
  await first;
  await server.startAgain();
  // Nothing comes before the server stops once more.
  const second = page.read();
  await waitFor('the page is up to date', () => page.upToDate);
  await server.stop();
  await second;
  await server.startAgain();
  const third = page.read();
  await writer.append(...RECORDS.slice(3));
  await writer.close();
  await third;
  assert.equal(page.closed, true);
  assert.deepEqual(page.records, RECORDS);
});

test('a writer repeats its last batch after a crash of the server, and a page resumes, each record once', async (t) => {
  const { server, url, writer, page: headers } = await startRun(t);
  await writer.create();
  const page = new Page(url, headers);
  const cut = assert.rejects(page.read(), { message: 'terminated' });
  await writer.append(...RECORDS.slice(0, 3));
  await page.has(3);
  await server.kill();
  await cut;
  await server.startAgain();
  assert.equal(await writer.repeat(), 204);
  const rest = page.read();
  await writer.append(...RECORDS.slice(3));
  await writer.close();
  await rest;
  assert.deepEqual(page.records, RECORDS);
});

test('a run is for its owner, and one that was never created is missing', async (t) => {
  const { server, url, writer, page: headers } = await startRun(t);
  const read = async (caller, where = url) => (await fetch(`${where}?offset=-1&live=sse`, { headers: caller })).status;
  assert.equal(await read(headers), 404);
  await writer.create();
  await writer.append(...RECORDS);
  await writer.close();
  const bob = await server.bearer('bob', { create: OWN, append: OWN, read: OWN });
  assert.equal(await read(bob), 404);
  assert.equal(await read({}), 401);
  assert.equal(await read({ Authorization: 'Bearer none' }), 401);
  const stranger = new Writer(url, bob);
  assert.equal(await stranger.create(), 404);
  assert.equal(await stranger.append(...RECORDS), 404);
  assert.equal(await stranger.close(), 404);
  const onlyReads = new Writer(url, headers);
  assert.equal(await onlyReads.append(...RECORDS), 403);
  const page = new Page(url, headers);
  await page.read();
  assert.deepEqual(page.records, RECORDS);
});
