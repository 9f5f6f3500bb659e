// The fetch of Node: a response that is cut is an error, and one that has ended is none, whether its stream has or the server stops.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };

const data = mkdtempSync(join(tmpdir(), 'encke-fetch-'));
let encke;

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress() });
});

after(async () => {
  await encke?.stop();
  rmSync(data, { recursive: true, force: true });
});

/** Opens an event stream and reads up to the first event. `rest()` reads to the end, or fails. */
async function open(path) {
  const response = await fetch(encke.url + path);
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('connection'), null);
  const reader = response.body.getReader();
  const first = await reader.read();
  assert.equal(first.done, false);
  const rest = async () => {
    const text = new TextDecoder();
    for (let all = ''; ; ) {
      const { done, value } = await reader.read();
      if (done) return all;
      all += text.decode(value, { stream: true });
    }
  };
  return rest;
}

async function request(method, path, options = {}) {
  const answer = await fetch(encke.url + path, { method, ...options });
  assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
  await answer.arrayBuffer();
}

async function make(name) {
  await request('PUT', `/v1/stream/${name}`, { headers: JSON_TYPE });
  await request('POST', `/v1/stream/${name}`, { headers: JSON_TYPE, body: '1' });
}

const subscriptions = (name) => [`/v1/stream/${name}?offset=-1&live=sse`, `/v1/events?stream=${name}@-1`];

test('the end of a stream is an end', async () => {
  await make('ends');
  const readers = await Promise.all(subscriptions('ends').map(open));
  await request('POST', '/v1/stream/ends', { headers: { 'Stream-Closed': 'true' } });
  for (const rest of readers) await rest();
});

test('a kill of the server is an error', async () => {
  await make('kill');
  const readers = await Promise.all(subscriptions('kill').map(open));
  const failures = readers.map((rest) => assert.rejects(rest(), TypeError));
  const { listen } = encke;
  await encke.kill();
  await Promise.all(failures);
  encke = await Encke.start({ data, listen });
});

test('a stop of the server ends a response, and its last event says why', async () => {
  await make('stop');
  const readers = await Promise.all(subscriptions('stop').map(open));
  const ends = readers.map((rest) => rest());
  const { listen } = encke;
  await encke.stop();
  for (const end of await Promise.all(ends)) assert.match(end, /"why":"the server stops","resumable":true/);
  encke = await Encke.start({ data, listen });
});
