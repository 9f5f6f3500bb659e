// `navigator.sendBeacon` with JSON appends from pages of an allowed origin and of no other, with a token in a cookie and without
// access control.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { BINARY, Encke } from '../encke.mjs';
import { waitFor } from '../wait.mjs';
import { launchChromium } from './chromium.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
const ACCESS = `
[access]
cookie = "encke"

[[access.issuers]]
name = "app"
issuer = "https://app.example"
audience = "encke"
algorithms = ["HS256"]
secret = "a secret of more than thirty-two bytes, for tests"
`;

const folder = mkdtempSync(join(tmpdir(), 'encke-beacon-'));
const servers = [];
let allowed;
let foreign;
let browser;

before(async () => {
  [allowed, foreign] = [await servePages(), await servePages()];
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  for (const server of servers) server.close().closeAllConnections();
  rmSync(folder, { recursive: true, force: true });
});

/** A server of empty pages; its origin. */
async function servePages() {
  const server = createServer((_, response) => response.setHeader('Content-Type', 'text/html').end('<!doctype html>'));
  servers.push(server);
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return `http://127.0.0.1:${server.address().port}`;
}

/** A server that allows pages of one origin, with a JSON stream `visits`; `args` configure its access control, `token` allows all. */
async function startVisits(name, args, token) {
  const data = join(folder, name);
  mkdirSync(data);
  const accessLog = join(data, 'access.log');
  const logArgs = ['--access-log', 'json', '--tuning', `access-log-file=${accessLog}`];
  const encke = await Encke.start({ data: join(data, 'data'), args: ['--cors-origins', allowed, ...logArgs, ...args] });
  const bearer = token ? { Authorization: `Bearer ${token}` } : {};
  const path = '/v1/stream/visits';
  const created = await encke.request('PUT', path, { headers: { ...JSON_TYPE, ...bearer } });
  assert.equal(created.status, 201, created.body);
  return {
    encke,
    url: encke.url + path,
    visits: async () => JSON.parse((await encke.request('GET', `${path}?offset=-1`, { headers: bearer })).body),
    /** Method and status of the browser's requests that the server has answered. */
    answered: () => {
      const entries = readFileSync(accessLog, 'utf8').split('\n').slice(0, -1).map((line) => JSON.parse(line));
      const ofBrowser = entries.filter((entry) => entry.path === path && entry.user_agent?.includes('Chrome'));
      return ofBrowser.map(({ method, status }) => `${method} ${status}`);
    },
  };
}

/** Sends a beacon from a page of `origin`, which stays open; returns the requests of the page that failed. */
async function beacon(context, origin, url, body, type) {
  const page = await context.newPage();
  const failed = [];
  page.on('requestfailed', (request) => failed.push(`${request.method()} ${request.url()}`));
  await page.goto(origin);
  const send = ([url, body, type]) => navigator.sendBeacon(url, new Blob([body], { type }));
  assert.equal(await page.evaluate(send, [url, body, type]), true, 'the browser takes the beacon');
  return failed;
}

/** What a beacon of each origin does. */
async function promise(server, context) {
  const { url, visits, answered } = server;
  await beacon(context, allowed, url, '{"visit":1}', 'application/json');
  await waitFor('the first visit is appended', async () => (await visits()).length > 0);
  assert.deepEqual(await visits(), [{ visit: 1 }]);
  await waitFor('the log has the beacon and the question before it', () =>
    ['OPTIONS 204', 'POST 204'].every((request) => answered().includes(request)));
  const before = answered().length;

  // The browser asks before it sends JSON; the server doesn't allow the origin, so that nothing is sent.
  const failed = await beacon(context, foreign, url, '{"visit":2}', 'application/json');
  await waitFor('the browser gives the beacon up', () => failed.includes(`POST ${url}`));
  // It sends text without a question.
  await beacon(context, foreign, url, '{"visit":3}', 'text/plain');
  await waitFor('the server refuses a beacon', () => answered().length >= before + 2);
  assert.deepEqual(answered().slice(before).sort(), ['OPTIONS 204', 'POST 403']);

  await beacon(context, allowed, url, '{"visit":4}', 'application/json');
  await waitFor('the last visit is appended', async () => (await visits()).length > 1);
  assert.deepEqual(await visits(), [{ visit: 1 }, { visit: 4 }]);
}

test('a beacon with JSON and a token in a cookie appends from an allowed origin only', async () => {
  const config = join(folder, 'encke.toml');
  writeFileSync(config, ACCESS);
  const token = execFileSync(BINARY, ['token', '--config', config, '--sub', 'ann', '--allow', 'create,read,append=/v1/stream/visits'], { encoding: 'utf8' });
  const server = await startVisits('access', ['--config', config, '--admin-listen', '127.0.0.1:0'], token.trim());
  const context = await browser.newContext();
  try {
    // Without a cookie there is no caller who may append.
    const { status } = await server.encke.request('POST', '/v1/stream/visits', { headers: { ...JSON_TYPE, Origin: allowed }, body: '{"visit":0}' });
    assert.equal(status, 401);
    // A cookie of a host goes to all its ports, as it does to all servers of a site.
    await context.addCookies([{ name: 'encke', value: token.trim(), url: server.url, sameSite: 'Lax' }]);
    await promise(server, context);
  } finally {
    await context.close();
    await server.encke.stop();
  }
});

test('without access control, a beacon with JSON appends from an allowed origin only', async () => {
  const server = await startVisits('open', []);
  const context = await browser.newContext();
  try {
    await promise(server, context);
  } finally {
    await context.close();
    await server.encke.stop();
  }
});
