#!/usr/bin/env node
// Makes the pool and serves the page. Images and thumbnails don't come this way: the page speaks to Encke itself.
//
//   node serve.mjs [--listen 127.0.0.1:4439] [--encke http://127.0.0.1:4437]

import { createServer } from 'node:http';
import { readFileSync, readdirSync } from 'node:fs';
import { extname } from 'node:path';
import { parseArgs } from 'node:util';

const TYPES = {
  '.css': 'text/css; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
};
const { values: options } = parseArgs({
  options: {
    listen: { type: 'string', default: '127.0.0.1:4439' },
    encke: { type: 'string', default: 'http://127.0.0.1:4437' },
  },
});
const settings = { type: 'claim', ack_ms: 10_000, attempts: 3, job_bytes_max: 1_048_576 };
const made = await fetch(`${options.encke}/v1/pool/thumbnails`, { method: 'PUT', body: JSON.stringify(settings) });
if (!made.ok) throw new Error(`the pool can't be made: ${made.status} ${await made.text()}`);

const page = new URL('page/', import.meta.url);
const files = new Map(readdirSync(page).map((name) => [`/${name}`, readFileSync(new URL(name, page))]));
files.set('/', files.get('/index.html'));

const listen = new URL(`http://${options.listen}`);
const server = createServer((request, response) => {
  const path = request.url.split('?', 1)[0];
  const file = files.get(path);
  if (!file || request.method !== 'GET') {
    response.writeHead(404, { 'content-type': 'text/plain' }).end('not found\n');
    return;
  }
  response.writeHead(200, { 'content-type': TYPES[extname(path)] ?? TYPES['.html'], 'cache-control': 'no-cache' });
  response.end(file);
});
server.listen(Number(listen.port || 80), listen.hostname, () => {
  const address = `http://${listen.hostname}:${server.address().port}/`;
  console.log(`the page is at ${address}?encke=${encodeURIComponent(options.encke)}`);
});
