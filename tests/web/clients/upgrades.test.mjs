// Clients of others through upgrades of the server: none of them connects again, and each has every record once.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { stream } from '@durable-streams/client';
import { EventSource } from 'eventsource';
import WebSocket from 'ws';
import { endWithUs } from '../child.mjs';
import { BINARY, Encke } from '../encke.mjs';
import { waitFor } from '../wait.mjs';

const UPGRADES = 5;
/** Milliseconds between two records, and between two upgrades. */
const EVERY_MS = 5;
const UPGRADE_EVERY_MS = 700;

const folder = mkdtempSync(join(tmpdir(), 'encke-upgrades-'));
const data = join(folder, 'data');
let encke;

before(async () => {
  encke = await Encke.start({ data });
});

after(async () => {
  await encke?.stop();
  rmSync(folder, { recursive: true, force: true });
});

test('clients of others stay connected through upgrades, and have each record once', async () => {
  const url = `${encke.url}/v1/stream/ticks`;
  const json = { 'Content-Type': 'application/json' };
  assert.equal((await fetch(url, { method: 'PUT', headers: json })).status, 201);
  const seen = { eventsource: [], client: [], ws: [], curl: [] };
  let opened = 0;

  const source = new EventSource(`${encke.url}/v1/events?stream=ticks@-1`);
  source.addEventListener('open', () => (opened += 1));
  source.addEventListener('message', (event) => seen.eventsource.push(...JSON.parse(event.data).messages));
  let failures = 0;
  source.addEventListener('error', () => (failures += 1));

  const reader = await stream({ url, offset: '-1', live: 'sse', json: true, warnOnHttp: false, backoffOptions: { maxRetries: 0 } });
  reader.subscribeJson((batch) => seen.client.push(...batch.items));
  const readerFailed = reader.closed.then(() => 'closed', (error) => error);

  const socket = new WebSocket(`${encke.url.replace('http', 'ws')}/v1/events`);
  await once(socket, 'open');
  let closes = 0;
  socket.on('close', () => (closes += 1));
  socket.on('message', (text) => seen.ws.push(...(JSON.parse(text).data ?? [])));
  socket.send(JSON.stringify({ type: 'subscribe', stream: 'ticks', offset: '-1' }));

  const curl = spawn('curl', ['-sN', '-H', 'Accept: application/x-ndjson', `${encke.url}/v1/events?stream=ticks@-1`]);
  endWithUs(curl);
  let rest = '';
  curl.stdout.setEncoding('utf8').on('data', (text) => {
    const lines = (rest + text).split('\n');
    rest = lines.pop();
    for (const line of lines.filter((one) => one.trim())) seen.curl.push(...(JSON.parse(line).messages ?? []));
  });

  let sent = 0;
  let goesOn = true;
  const writer = (async () => {
    while (goesOn) {
      const answer = await fetch(url, { method: 'POST', headers: json, body: String(sent) });
      assert.equal(answer.status, 204);
      sent += 1;
      await sleep(EVERY_MS);
    }
  })();
  for (let upgrade = 0; upgrade < UPGRADES; upgrade += 1) {
    await sleep(UPGRADE_EVERY_MS);
    const { stdout } = await promisify(execFile)(BINARY, ['upgrade', '--json', data]);
    const report = JSON.parse(stdout);
    assert.ok(report.moved >= 4, stdout);
    assert.equal(report.closed, 0, stdout);
  }
  await sleep(UPGRADE_EVERY_MS);
  goesOn = false;
  await writer;
  const all = Array.from({ length: sent }, (_, number) => number);
  for (const [client, numbers] of Object.entries(seen)) {
    await waitFor(`${client} has ${sent} records`, () => numbers.length >= sent);
    assert.deepEqual(numbers, all, client);
  }
  assert.deepEqual([opened, failures, closes, curl.exitCode], [1, 0, 0, null], 'no client has connected again');
  assert.equal(await Promise.race([readerFailed, 'open']), 'open');
  source.close();
  reader.cancel();
  socket.terminate();
  curl.kill();
});
