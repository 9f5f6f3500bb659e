// HTTP/2 as Node and curl speak it: a hundred event streams of one connection, which go on at their offsets after a restart
// of the server; bodies larger than any window, in both directions; responses without a body.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:http2';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';

const run = promisify(execFile);
const JSON_TYPE = { 'content-type': 'application/json' };
const STREAMS = 100;
const RECORDS = 30;

const data = mkdtempSync(join(tmpdir(), 'encke-http2-'));
let encke;
let session;

async function open() {
  session = connect(encke.url);
  session.on('error', () => {}); // Its requests fail, too.
  await once(session, 'connect');
}

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress() });
  await open();
});

after(async () => {
  session?.destroy();
  await encke?.stop();
  rmSync(data, { recursive: true, force: true });
});

/** One request; its response and body. `trailers` go behind the body. */
async function request(method, path, { headers = {}, body, trailers } = {}) {
  const stream = session.request({ ':method': method, ':path': path, ...headers }, { endStream: body === undefined, waitForTrailers: !!trailers });
  if (trailers) stream.on('wantTrailers', () => stream.sendTrailers(trailers));
  if (body !== undefined) stream.end(body);
  const [response] = await once(stream, 'response');
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return { status: response[':status'], headers: response, body: Buffer.concat(chunks).toString() };
}

const create = (name) => request('PUT', `/v1/stream/${name}`, { headers: JSON_TYPE });
const append = (name, body) => request('POST', `/v1/stream/${name}`, { headers: JSON_TYPE, body });

/** Follows the numbers of a stream as an EventSource does: `offset` is that of the last event. */
function follow(name, offset, numbers) {
  const stream = session.request({ ':path': `/v1/stream/${name}?offset=${offset}&live=sse` });
  const follower = { stream, offset, code: undefined };
  let rest = '';
  stream.setEncoding('utf8');
  stream.on('data', (text) => {
    const events = (rest + text).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      const payload = event.split('\n').filter((line) => line.startsWith('data:')).map((line) => line.slice(5)).join('\n');
      if (event.includes('event: data')) numbers.push(...JSON.parse(payload));
      if (event.includes('event: control')) follower.offset = JSON.parse(payload).streamNextOffset;
    }
  });
  follower.closed = new Promise((resolve) => {
    stream.on('error', () => {});
    stream.on('close', () => resolve(stream.rstCode));
  });
  return follower;
}

async function until(what, condition) {
  for (const begun = performance.now(); !condition(); ) {
    assert.ok(performance.now() - begun < 60_000, `still not so: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

test('a hundred event streams of one connection get every record once, also across a restart', async () => {
  const names = Array.from({ length: STREAMS }, (_, number) => `s${number}`);
  for (const name of names) assert.equal((await create(name)).status, 201);
  const got = names.map(() => []);
  let followers = names.map((name, number) => follow(name, '-1', got[number]));
  const publish = async (from, to) => {
    for (let record = from; record < to; record += 1) {
      await Promise.all(names.map((name) => append(name, String(record))));
    }
  };
  await publish(0, RECORDS);
  await until('everything has come', () => got.every((numbers) => numbers.length === RECORDS));
  const { listen } = encke;
  const stopped = Promise.all(followers.map((follower) => follower.closed));
  await encke.stop();
  // Each response ends between two events, and before the connection does: its stream goes on.
  for (const code of await stopped) assert.equal(code, 0);
  session.destroy();
  encke = await Encke.start({ data, listen });
  await open();
  await publish(RECORDS, RECORDS + 5);
  followers = names.map((name, number) => follow(name, followers[number].offset, got[number]));
  await publish(RECORDS + 5, 2 * RECORDS);
  const all = Array.from({ length: 2 * RECORDS }, (_, record) => record);
  await until('the rest has come', () => got.every((numbers) => numbers.length >= all.length));
  for (const numbers of got) assert.deepEqual(numbers, all);
  for (const follower of followers) follower.stream.close();
});

test('bodies are larger than any window, and trailers are left out', async () => {
  await create('large');
  const message = JSON.stringify('x'.repeat(5_000_000));
  const appended = await request('POST', '/v1/stream/large', { headers: JSON_TYPE, body: message, trailers: { 'content-length': '7', 'x-end': 'yes' } });
  assert.equal(appended.status, 204);
  const invited = session.request({ ':method': 'PUT', ':path': '/v1/stream/invited', expect: '100-continue' }, { endStream: false });
  await once(invited, 'continue');
  invited.end('x');
  const [created] = await once(invited, 'response');
  assert.equal(created[':status'], 201);
  invited.close();
  const whole = await request('GET', '/v1/stream/large?offset=-1');
  assert.equal(whole.body, `[${message}]`);
  const coded = await request('GET', '/v1/stream/large?offset=-1', { headers: { 'accept-encoding': 'gzip' } });
  assert.equal(coded.headers['content-encoding'], 'gzip');
  const again = await request('GET', '/v1/stream/large?offset=-1', { headers: { 'if-none-match': whole.headers.etag } });
  assert.deepEqual([again.status, again.body], [304, '']);
});

test('responses without a body end with their head', async () => {
  await create('bare');
  const head = await request('HEAD', '/v1/stream/bare');
  assert.deepEqual([head.status, head.body], [200, '']);
  assert.ok(head.headers['stream-next-offset']);
  const posted = await append('bare', '1');
  assert.deepEqual([posted.status, posted.body, posted.headers['content-length']], [204, '', undefined]);
  const missing = await request('GET', '/v1/stream/none');
  assert.equal(missing.status, 404);
  assert.ok(JSON.parse(missing.body).error.code);
  for (const response of [head, posted, missing]) {
    assert.equal(response.headers.connection, undefined);
    assert.equal(response.headers['transfer-encoding'], undefined);
  }
});

test('curl', async () => {
  await create('curl');
  const body = join(data, 'body.json');
  writeFileSync(body, JSON.stringify('y'.repeat(3_000_000)));
  const url = `${encke.url}/v1/stream/curl`;
  const curl = (...args) => run('curl', ['-sSf', '--max-time', '60', '--http2-prior-knowledge', ...args], { maxBuffer: 1 << 24 });
  const posted = await curl('-w', '%{http_version} %{http_code}', '-H', 'Content-Type: application/json', '--data-binary', `@${body}`, url);
  assert.equal(posted.stdout, '2 204');
  const read = await curl(`${url}?offset=-1`);
  assert.equal(JSON.parse(read.stdout)[0].length, 3_000_000);
});
