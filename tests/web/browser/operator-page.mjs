// What the tests of the page for operators have in common: servers with an address for operators, clients of every kind, and the page.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Encke } from '../encke.mjs';
import { complaintsOf } from './chromium.mjs';

/** The sections of the page, by the words of its navigation. */
export const SECTIONS = ['Server', 'Connections', 'Streams', 'Pools', 'Access', 'Configuration', 'Machine and fleet'];

/** A server with an address for operators, and with access control if `config` has some. */
export async function startGuarded(config) {
  const folder = mkdtempSync(join(tmpdir(), 'encke-operators-'));
  const args = ['--admin-listen', '127.0.0.1:0'];
  if (config) {
    const file = join(folder, 'encke.toml');
    writeFileSync(file, config, { mode: 0o600 });
    args.push('--config', file);
  }
  const encke = await Encke.start({ data: join(folder, 'data'), args });
  const stop = async () => {
    await encke.stop();
    rmSync(folder, { recursive: true, force: true });
  };
  return { encke, stop };
}

/** A page of a server's operators, which has been opened at a section. `complaints` has what went wrong in it. */
export async function openPage(browser, base, hash = '', options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const complaints = complaintsOf(page);
  const requests = [];
  page.on('request', (request) => requests.push(new URL(request.url())));
  await page.goto(`${base}/admin${hash && `#${hash}`}`);
  return { page, complaints, requests };
}

/** A subscriber that reads what it gets into `text`. */
export function subscribe(url, headers = {}) {
  const client = { text: '', ended: false };
  client.request = http.get(url, { headers, agent: false }, (response) => {
    client.status = response.statusCode;
    response.setEncoding('utf8').on('data', (text) => (client.text += text));
    response.on('close', () => (client.ended = true));
  });
  client.request.on('error', () => (client.ended = true));
  client.close = () => client.request.destroy();
  return client;
}

/** A subscriber that reads nothing. */
export function ignore(url) {
  const { host, hostname, port, pathname, search } = new URL(url);
  const socket = net.connect(Number(port), hostname);
  socket.on('error', () => {});
  socket.pause();
  socket.write(`GET ${pathname}${search} HTTP/1.1\r\nHost: ${host}\r\n\r\n`);
  return { close: () => socket.destroy() };
}

/** A request that has to succeed. */
export async function must(method, url, { body, headers = {}, json } = {}) {
  const type = json === undefined ? headers : { 'Content-Type': 'application/json', ...headers };
  const response = await fetch(url, { method, headers: type, body: json === undefined ? body : JSON.stringify(json) });
  if (!response.ok) throw new Error(`${method} ${url}: ${response.status} ${await response.text()}`);
  return response;
}
