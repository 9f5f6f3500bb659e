// `encke import` from the reference server of the protocol: what it copies, what clients do with the map, and the way back. The list of
// streams and the code that translates offsets are those of docs/migrate.md.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { DurableStream, stream } from '@durable-streams/client';
import { DurableStreamTestServer } from '@durable-streams/server';
import { endWithUs } from '../child.mjs';
import { blocks } from '../docs/blocks.mjs';
import { BINARY, Encke } from '../encke.mjs';
import { waitFor } from '../wait.mjs';

const DOCUMENT = blocks(fileURLToPath(new URL('../../../docs/migrate.md', import.meta.url)));
const JSON_TYPE = 'application/json';
const QUIET = { warnOnHttp: false };

const directory = mkdtempSync(join(tmpdir(), 'encke-import-'));
const data = join(directory, 'data');
const state = join(directory, 'state');
let source;
let from;
let encke;
let to;

before(async () => {
  source = new DurableStreamTestServer({ port: 0, host: '127.0.0.1', dataDir: data, longPollTimeout: 1_000 });
  from = `${await source.start()}/v1/stream`;
  encke = await Encke.start({ data: join(directory, 'encke') });
  to = `${encke.url}/v1/stream`;
});

after(async () => {
  await source?.stop();
  await encke?.stop();
  rmSync(directory, { recursive: true, force: true });
});

/** Runs `encke import` to its end: its exit code, and what it printed. */
async function run(...args) {
  const ended = await promisify(execFile)(BINARY, ['import', ...args]).catch((error) => error);
  return { code: ended.code ?? 0, stdout: ended.stdout, stderr: ended.stderr };
}

async function copied(...args) {
  const { code, stdout, stderr } = await run(...args, '--state', state, '--json');
  assert.equal(code, 0, stdout + stderr);
  return JSON.parse(stdout);
}

const create = (name, contentType, options = {}) => DurableStream.create({ url: `${from}/${name}`, contentType, ...QUIET, ...options });

async function head(url) {
  const { headers } = await fetch(url, { method: 'HEAD' });
  return ['content-type', 'stream-ttl', 'stream-closed'].map((name) => headers.get(name));
}

/** The messages of a JSON stream behind an offset, by the official client. */
const messages = async (url, offset) => (await stream({ url, offset, live: false, json: true, ...QUIET })).json();
const bytes = async (url) => Buffer.from(await (await fetch(`${url}?offset=-1`)).arrayBuffer());
const tail = async (url) => (await fetch(url, { method: 'HEAD' })).headers.get('stream-next-offset');

test('streams of the reference server are copied, by the list that the document makes', async () => {
  const chat = await create('chat/ann', JSON_TYPE, { ttlSeconds: 3_600 });
  for (let number = 0; number < 30; number += 1) await chat.append(JSON.stringify([{ number, text: 'é\r\n' }]));
  const text = await create('text', 'text/plain');
  for (const part of ['a\r\n', 'b\r', '\nc é']) await text.append(part);
  const binary = await create('bytes', 'application/octet-stream');
  await binary.append(new Uint8Array(2_500_000).map((_, at) => (at * at) % 251));
  await binary.close();
  await create('empty', JSON_TYPE);

  const list = DOCUMENT.find(({ text }) => text.startsWith('node -e')).text;
  const command = list.replace('./data/streams > streams.txt', join(data, 'streams'));
  const { stdout } = await promisify(execFile)('bash', ['-c', command]);
  const names = ['/v1/stream/bytes', '/v1/stream/chat/ann', '/v1/stream/empty', '/v1/stream/text'];
  assert.deepEqual(stdout.trim().split('\n').sort(), names);

  const report = await copied(from, ...stdout.trim().split('\n'), '--to', encke.url, '--verify');
  assert.equal(report.complete, true);
  for (const name of ['chat/ann', 'text', 'bytes', 'empty']) {
    assert.deepEqual(await head(`${to}/${name}`), await head(`${from}/${name}`), name);
    assert.ok((await bytes(`${from}/${name}`)).equals(await bytes(`${to}/${name}`)), name);
  }
  assert.deepEqual(await messages(`${to}/chat/ann`, '-1'), await messages(`${from}/chat/ann`, '-1'));
});

test('clients go on with the offsets that the map of the document gives them', async () => {
  const feed = await create('feed', JSON_TYPE);
  for (let number = 0; number < 5; number += 1) await feed.append(String(number));
  const inside = await tail(`${from}/feed`);
  for (let number = 5; number < 10; number += 1) await feed.append(String(number));
  const importer = spawn(BINARY, ['import', from, 'feed', '--to', encke.url, '--state', state, '--follow']);
  endWithUs(importer);
  let said = '';
  importer.stderr.setEncoding('utf8').on('data', (text) => (said += text));
  await waitFor('the import follows', () => said.includes('up to date, following'));
  const offsets = [];
  for (let number = 10; number < 20; number += 1) {
    await feed.append(String(number));
    offsets.push(await tail(`${from}/feed`));
    await waitFor('it is copied', async () => (await messages(`${to}/feed`, '-1')).length === number + 1);
  }
  importer.kill('SIGINT');
  const [code] = await once(importer, 'exit');
  assert.equal(code, 0, said);

  const module = DOCUMENT.find(({ language }) => language === 'ts').text;
  const { readMap, translate } = await import(`data:text/javascript,${encodeURIComponent(module)}`);
  const map = readMap(join(state, 'feed.jsonl'));
  for (const [at, offset] of offsets.entries()) {
    const wanted = await messages(`${from}/feed`, offset);
    assert.equal(wanted.length, 9 - at);
    assert.deepEqual(await messages(`${to}/feed`, translate(map, offset)), wanted);
  }
  // Nothing was told about this one.
  assert.equal((await messages(`${to}/feed`, translate(map, inside))).length, 20);
  const asked = await run('offset', 'feed', inside, '--state', state, '--resolve');
  assert.equal(asked.code, 0, asked.stderr);
  assert.deepEqual(await messages(`${to}/feed`, asked.stdout.trim()), await messages(`${from}/feed`, inside));
  // Without the map an old offset is refused.
  const refused = await fetch(`${to}/feed?offset=${inside}`);
  assert.equal(refused.status, 410);
});

test('what was written at Encke goes back', async () => {
  const way = await create('way', JSON_TYPE);
  for (let number = 0; number < 5; number += 1) await way.append(String(number));
  await copied(from, 'way', '--to', encke.url);
  const written = new DurableStream({ url: `${to}/way`, contentType: JSON_TYPE, ...QUIET });
  for (let number = 5; number < 9; number += 1) await written.append(String(number));
  const back = join(directory, 'back');
  const { code, stdout } = await run(to, 'way', '--to', from, '--state', back, '--verify');
  assert.equal(code, 0, stdout);
  assert.match(stdout, /copied now: 4 records/);
  assert.deepEqual(await messages(`${from}/way`, '-1'), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  assert.ok(existsSync(join(back, 'way.jsonl')));
  assert.match(readFileSync(join(back, 'way.jsonl'), 'utf8'), /"found":true/);
});
