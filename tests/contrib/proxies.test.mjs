// Encke behind nginx, Caddy, HAProxy and Traefik, with the configurations of contrib: events arrive when they are sent, and Encke knows the
// client's address, the scheme and the host, whatever the client writes into its header fields.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { request as plainRequest } from 'node:http';
import { connect as connect2 } from 'node:http2';
import { Agent, request as tlsRequest } from 'node:https';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { launchChromium } from '../web/browser/chromium.mjs';
import { selfSigned } from '../web/certificate.mjs';
import { blocks } from '../web/docs/blocks.mjs';
import { Encke } from '../web/encke.mjs';
import { fixedAddress } from '../web/ports.mjs';
import { NAME, Proxy, program } from './proxy-process.mjs';

const { WebSocket } = createRequire(new URL('../web/', import.meta.url))('ws');

/** The client's address: of this machine, but not that of the proxy. */
const CLIENT = '127.0.0.77';
const JSON_TYPE = { 'Content-Type': 'application/json' };
/** After this time what a test waits for does not come. */
const LATE_MS = 60_000;
/** What a client writes to pass for another one, in the words that proxies use. */
const FORGED = {
  'X-Forwarded-For': '203.0.113.9',
  'X-Forwarded-Proto': 'http',
  'X-Forwarded-Host': 'evil.example.com',
  'X-Real-IP': '203.0.113.9',
  Forwarded: 'for=203.0.113.9;proto=http;host=evil.example.com',
};

/** How the document starts Encke behind a proxy. */
const DOCUMENT = fileURLToPath(new URL('../../docs/proxies.md', import.meta.url));
const [, FLAGS] = /^encke serve (.*)$/m.exec(blocks(DOCUMENT).find(({ language }) => language === 'sh').text);

for (const name of ['nginx', 'caddy', 'haproxy', 'traefik']) {
  const skip = !program(name) && `${name} is missing: install it${name === 'traefik' ? '' : ", or run `make contrib`, which unpacks Debian's package"}`;
  describe(`behind ${name}`, { skip }, () => behind(name));
}

function behind(name) {
  const data = mkdtempSync(join(tmpdir(), `encke-behind-${name}-`));
  const agent = new Agent({ keepAlive: true });
  const sessions = [];
  let encke;
  let proxy;

  /** Starts Encke as the document does, with another port for operators. */
  async function serve(heartbeat, listen) {
    const test = ['--admin-listen', '127.0.0.1:0', '--access-log', 'json', '--tuning', `heartbeat=${heartbeat}`];
    encke = await Encke.start({ data, listen, args: [...FLAGS.split(' '), ...test] });
  }

  before(async () => {
    // No heartbeat brings an event along, or tells Encke that a client has left.
    await serve('1h', await fixedAddress());
    proxy = await Proxy.start(name, encke.listen);
    await answers();
  });

  after(async () => {
    agent.destroy();
    for (const session of sessions) session.destroy();
    await proxy?.stop();
    await encke?.stop();
    rmSync(data, { recursive: true, force: true });
  });

  /** Sends a request to the proxy from the client's address, over a connection of its `own` or a kept one; the response has only its head yet. */
  async function send(method, path, { headers = {}, body, plain = false, own = false } = {}) {
    const target = { host: '127.0.0.1', port: plain ? proxy.plain : proxy.tls, localAddress: CLIENT };
    const options = { ...target, method, path, headers: { Host: NAME, ...headers }, servername: NAME, rejectUnauthorized: false };
    const sent = plain ? plainRequest(options) : tlsRequest({ ...options, agent: own ? false : agent });
    sent.end(body);
    return responseTo(sent);
  }

  /** Sends a request and returns its response with the body. */
  async function whole(method, path, options) {
    const response = await send(method, path, options);
    let body = '';
    for await (const chunk of response.setEncoding('utf8')) body += chunk;
    return { status: response.statusCode, headers: response.headers, body };
  }

  /** Waits until the proxy reaches Encke. */
  async function answers() {
    for (const begun = performance.now(); (await whole('GET', '/healthz')).status !== 200; ) {
      assert.ok(performance.now() - begun < LATE_MS, 'the proxy does not reach Encke');
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Waits for a line of the access log about a path. */
  async function line(path, isMeant = () => true) {
    const found = () => encke.output.split('\n').filter((text) => text.startsWith('{') && text.endsWith('}')).map((text) => JSON.parse(text))
      .find((entry) => entry.path === path && isMeant(entry));
    await until(`the access log has ${path}: ${encke.output}`, found);
    return found();
  }

  const appendDirectly = async (stream, record) => {
    const response = await fetch(`${encke.url}/v1/stream/${stream}`, { method: 'POST', headers: JSON_TYPE, body: JSON.stringify(record) });
    assert.equal(response.status, 204);
  };

  test('a stream is created with the public URL, appended to, and read', async () => {
    const created = await whole('PUT', '/v1/stream/room', { headers: JSON_TYPE });
    assert.equal(created.status, 201, created.body);
    assert.equal(created.headers.location, `https://${NAME}/v1/stream/room`);
    const appended = await whole('POST', '/v1/stream/room', { headers: { ...JSON_TYPE, Origin: `https://${NAME}` }, body: '{"n":1}' });
    assert.equal(appended.status, 204, appended.body);
    const read = await whole('GET', '/v1/stream/room?offset=-1');
    assert.equal(read.body, '[{"n":1}]');
  });

  test('a body as large as Encke allows passes', async () => {
    await whole('PUT', '/v1/stream/large', { headers: JSON_TYPE });
    const appended = await whole('POST', '/v1/stream/large', { headers: JSON_TYPE, body: JSON.stringify('x'.repeat(16 * 1024 * 1024 - 2)) });
    assert.equal(appended.status, 204, appended.body);
  });

  test('the access log has the address of the client, and not what the client claims', async () => {
    const honest = await whole('HEAD', '/v1/stream/none?honest');
    const forged = await whole('HEAD', '/v1/stream/none?forged', { headers: FORGED });
    const nonsense = await whole('HEAD', '/v1/stream/none?nonsense', { headers: { 'X-Forwarded-For': 'no address, 127.0.0.1' } });
    for (const [response, query] of [[honest, 'honest'], [forged, 'forged'], [nonsense, 'nonsense']]) {
      assert.equal(response.status, 404, query);
      assert.equal((await line(`/v1/stream/none?${query}`)).client, CLIENT, query);
    }
    const created = await whole('PUT', '/v1/stream/forged', { headers: { ...JSON_TYPE, ...FORGED } });
    assert.equal(created.headers.location, `https://${NAME}/v1/stream/forged`);
  });

  /** Follows a stream over a version of HTTP; `text` grows while events arrive. */
  async function follow(version, path, headers = {}) {
    const follower = { text: '', ended: false };
    const read = (stream) => {
      stream.setEncoding('utf8').on('data', (chunk) => (follower.text += chunk)).on('close', () => (follower.ended = true)).on('error', () => {});
    };
    if (version === '2') {
      const target = { host: '127.0.0.1', port: proxy.tls, localAddress: CLIENT, servername: NAME };
      const socket = connectTls({ ...target, rejectUnauthorized: false, ALPNProtocols: ['h2'] });
      await once(socket, 'secureConnect');
      const session = connect2(`https://${NAME}`, { createConnection: () => socket });
      sessions.push(session);
      const events = session.request({ ':path': path });
      const response = await responseTo(events);
      assert.equal(response[':status'], 200);
      read(events);
      follower.leave = () => session.destroy();
    } else {
      const response = await send('GET', path, { headers });
      assert.equal(response.statusCode, 200);
      read(response);
      follower.leave = () => response.destroy();
    }
    return follower;
  }

  for (const version of ['1.1', '2']) {
    test(`an event stream over HTTP/${version} flows, and ends at Encke when the client leaves`, async () => {
      const stream = `events-${version}`;
      await whole('PUT', `/v1/stream/${stream}`, { headers: JSON_TYPE });
      const path = `/v1/stream/${stream}?offset=-1&live=sse`;
      const follower = await follow(version, path);
      for (const record of ['first', 'second', 'third']) {
        await appendDirectly(stream, record);
        await until(`the event arrives: ${record}`, () => follower.text.includes(record));
      }
      assert.ok(!follower.ended, follower.text);
      follower.leave();
      const entry = await line(path);
      assert.deepEqual([entry.client, entry.end, entry.protocol], [CLIENT, 'hang_up', 'HTTP/1.1']);
    });
  }

  test('lines of JSON flow', async () => {
    await whole('PUT', '/v1/stream/lines', { headers: JSON_TYPE });
    const follower = await follow('1.1', '/v1/stream/lines?offset=-1&live=true', { Accept: 'application/x-ndjson' });
    for (const record of ['first', 'second']) {
      await appendDirectly('lines', record);
      await until(`the line arrives: ${record}`, () => follower.text.includes(record));
    }
    follower.leave();
  });

  test('a long poll is answered when there is something to read', async () => {
    const created = await whole('PUT', '/v1/stream/polled', { headers: JSON_TYPE });
    const answer = whole('GET', `/v1/stream/polled?offset=${created.headers['stream-next-offset']}&live=long-poll`);
    while ((await metric(encke, 'encke_subscribers')) < 1) await new Promise((resolve) => setTimeout(resolve, 5));
    await appendDirectly('polled', 'at last');
    assert.equal((await answer).body, '["at last"]');
  });

  test('a WebSocket gets records and appends, and ends at Encke when the client leaves', async () => {
    await whole('PUT', '/v1/stream/socket', { headers: JSON_TYPE });
    const options = { localAddress: CLIENT, servername: NAME, rejectUnauthorized: false, headers: { Host: NAME }, origin: `https://${NAME}` };
    const socket = new WebSocket(`wss://127.0.0.1:${proxy.tls}/v1/events?from-socket`, ['encke.v1'], options);
    const messages = [];
    socket.on('message', (data) => messages.push(JSON.parse(data)));
    await once(socket, 'open');
    const say = (message) => socket.send(JSON.stringify(message));
    const got = (what) => until(`the message arrives: ${JSON.stringify(messages)}`, () => messages.some(what));
    say({ type: 'subscribe', stream: 'socket', offset: '-1' });
    await got(({ type }) => type === 'subscribed');
    await appendDirectly('socket', 'to the socket');
    await got(({ type, data }) => type === 'records' && data.includes('to the socket'));
    say({ type: 'append', id: 1, stream: 'socket', data: 'from the socket' });
    await got(({ type, id }) => type === 'appended' && id === 1);
    socket.terminate();
    assert.equal((await line('/v1/events?from-socket')).client, CLIENT);
  });

  test('a reload cuts no event stream', { skip: name === 'traefik' && 'it watches the file' }, async () => {
    await whole('PUT', '/v1/stream/reloaded', { headers: JSON_TYPE });
    const follower = await follow('1.1', '/v1/stream/reloaded?offset=-1&live=sse');
    await proxy.reload(name);
    // Connections that are kept may end now, so each request has its own.
    for (const record of ['after the reload', 'and another']) {
      assert.equal((await whole('POST', '/v1/stream/reloaded', { headers: JSON_TYPE, body: JSON.stringify(record), own: true })).status, 204);
      await until(`the event arrives: ${record}`, () => follower.text.includes(record));
    }
    follower.leave();
    agent.destroy();
  });

  test('the proxy asks for the health of Encke', { skip: name === 'nginx' && 'it does not' }, async () => {
    await line('/healthz', ({ client, status }) => client !== CLIENT && status === 200);
  });

  test('requests share connections to Encke', async () => {
    await whole('PUT', '/v1/stream/shared', { headers: JSON_TYPE });
    const before = await metric(encke, 'encke_connections_accepted_total');
    for (let record = 0; record < 50; record += 1) {
      assert.equal((await whole('POST', '/v1/stream/shared', { headers: JSON_TYPE, body: String(record) })).status, 204);
    }
    const opened = (await metric(encke, 'encke_connections_accepted_total')) - before;
    // Checks of the health are among them.
    assert.ok(opened < 25, `${opened} connections for 50 requests`);
  });

  test('other hosts and the paths of operators are out of reach', async () => {
    for (const path of ['/metrics', '/v1/admin/revoke']) {
      const response = await whole('GET', path);
      assert.ok([403, 404, 405].includes(response.status), `${path}: ${response.status} ${response.body}`);
      assert.doesNotMatch(response.body, /encke_connections/);
    }
    const revoked = await whole('POST', '/v1/admin/revoke', { headers: JSON_TYPE, body: '{"sub":"ann"}' });
    assert.ok([403, 404].includes(revoked.status), `${revoked.status} ${revoked.body}`);
    const other = await whole('GET', '/v1/stream/room?offset=-1', { headers: { Host: 'evil.example.com' } });
    assert.doesNotMatch(other.body, /"n":1/);
  });

  test('http is redirected to https', async () => {
    const response = await whole('GET', '/v1/stream/room', { plain: true });
    // Traefik sends 308 for other methods than GET.
    assert.equal(response.status, name === 'traefik' ? 301 : 308);
    const { protocol, hostname, pathname } = new URL(response.headers.location);
    assert.deepEqual([protocol, hostname, pathname], ['https:', NAME, '/v1/stream/room']);
  });

  test('a page creates a stream, and its ten event sources get what it posts', async () => {
    const browser = await launchChromium([`--host-resolver-rules=MAP ${NAME}:443 127.0.0.1:${proxy.tls}`]);
    try {
      const page = await (await browser.newContext({ ignoreHTTPSErrors: true })).newPage();
      await page.goto(`https://${NAME}/`, { timeout: LATE_MS });
      const got = await page.evaluate(async () => {
        const url = '/v1/stream/page';
        const headers = { 'Content-Type': 'application/json' };
        const created = await fetch(url, { method: 'PUT', headers });
        const arrivals = Array.from({ length: 10 }, () => new Promise((resolve) => {
          const source = new EventSource(`${url}?offset=-1&live=sse`);
          source.addEventListener('data', ({ data }) => resolve(data));
        }));
        const posted = await fetch(url, { method: 'POST', headers, body: '{"text":"from the page"}' });
        return { location: created.headers.get('Location'), posted: posted.status, events: await Promise.all(arrivals) };
      });
      assert.equal(got.location, `https://${NAME}/v1/stream/page`);
      assert.equal(got.posted, 204);
      for (const event of got.events) assert.match(event, /from the page/);
      assert.equal(got.events.length, 10);
    } finally {
      await browser.close();
    }
  });

  test('an event stream ends with Encke; after a restart heartbeats and events arrive', async () => {
    await whole('PUT', '/v1/stream/restarted', { headers: JSON_TYPE });
    const path = '/v1/stream/restarted?offset=-1&live=sse';
    const cut = await follow('1.1', path);
    const { listen } = encke;
    await encke.stop();
    await until('the stream ends', () => cut.ended);
    await serve('1s', listen);
    await answers();
    const follower = await follow('1.1', path);
    await until('a heartbeat arrives', () => /^:/m.test(follower.text));
    await appendDirectly('restarted', 'after the restart');
    await until('the event arrives', () => follower.text.includes('after the restart'));
    follower.leave();
  });
}

test('HAProxy passes TLS and HTTP/2 on, and the PROXY protocol names the client', { skip: !program('haproxy') && 'haproxy is missing' }, async () => {
  const folder = mkdtempSync(join(tmpdir(), 'encke-passthrough-'));
  const { cert, key } = selfSigned(folder);
  const files = ['--data', join(folder, 'data'), '--tls-cert', cert, '--tls-key', key];
  const flags = ['--trust', '127.0.0.1/32', '--proxy-protocol', '--open', '--tuning', `hosts=${NAME}`, '--admin-listen', 'none', '--access-log', 'json'];
  const encke = new Encke(['serve', '--listen', '127.0.0.1:0', ...files, ...flags], { cert });
  await until('Encke listens', () => encke.url);
  // It has started when a handshake through it succeeds.
  const proxy = await Proxy.start('haproxy with TLS passed through', encke.listen);
  const socket = connectTls({ host: '127.0.0.1', port: proxy.tls, localAddress: CLIENT, servername: NAME, rejectUnauthorized: false, ALPNProtocols: ['h2'] });
  await once(socket, 'secureConnect');
  const session = connect2(`https://${NAME}`, { createConnection: () => socket });
  after(async () => {
    session.destroy();
    await proxy.stop();
    await encke.kill();
    rmSync(folder, { recursive: true, force: true });
  });
  const ask = async (method, path, body) => {
    const request = session.request({ ':method': method, ':path': path, 'content-type': 'application/json' });
    request.end(body);
    return { request, head: await responseTo(request) };
  };
  const created = await ask('PUT', '/v1/stream/passed');
  assert.equal(created.head[':status'], 201);
  assert.equal(new URL(created.head.location).href, `https://${NAME}/v1/stream/passed`);
  const { request } = await ask('GET', '/v1/stream/passed?offset=-1&live=sse');
  let text = '';
  request.setEncoding('utf8').on('data', (chunk) => (text += chunk));
  assert.equal((await ask('POST', '/v1/stream/passed', '"through"')).head[':status'], 204);
  await until('the event arrives', () => text.includes('through'));
  const line = (path, isMeant) => encke.output.split('\n').some((one) => one.includes(`"path":"${path}"`) && isMeant(one));
  await until('the access log has the client', () => line('/v1/stream/passed', (one) => one.includes(CLIENT) && one.includes('"HTTP/2.0"')));
  await until('HAProxy asks for the health', () => line('/healthz', (one) => one.includes('"status":200')));
});

/** The head of the response to a request. */
async function responseTo(request) {
  const late = setTimeout(() => request.destroy(new Error('no response')), LATE_MS);
  try {
    const [response] = await once(request, 'response');
    return response;
  } finally {
    clearTimeout(late);
  }
}

/** The value of a metric, as Encke says it to operators. */
async function metric(encke, name) {
  const [, operators] = /for operators on (http:\/\/[0-9.:]+)/.exec(encke.output);
  const metrics = await (await fetch(`${operators}/metrics`)).text();
  const [, value] = new RegExp(`^${name} (\\d+)$`, 'm').exec(metrics) ?? assert.fail(metrics);
  return Number(value);
}

async function until(what, condition) {
  for (const begun = performance.now(); !condition(); ) {
    assert.ok(performance.now() - begun < LATE_MS, `still not so: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}
