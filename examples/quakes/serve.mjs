#!/usr/bin/env node
// Serves the page and the few files it needs, and nothing else. The events don't come from here: the page reads them
// from Encke, which is another origin.
//
//   node serve.mjs [--listen 127.0.0.1:4440]

import { createServer } from 'node:http';
import { createReadStream, readdirSync } from 'node:fs';
import { extname } from 'node:path';
import { parseArgs } from 'node:util';

const TYPES = {
  '.css': 'text/css; charset=utf-8',
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.json': 'application/json',
};

const here = (path) => new URL(path, import.meta.url);

/** Every path that is answered, and the file it stands for. */
const FILES = new Map([
  ...readdirSync(here('page')).map((name) => [`/${name}`, here(`page/${name}`)]),
  ['/', here('page/index.html')],
  ['/modules/durable-streams-client.js', here('node_modules/@durable-streams/client/dist/index.js')],
  ['/data/world.json', here('node_modules/vega-datasets/data/world-110m.json')],
]);

const { values: options } = parseArgs({ options: { listen: { type: 'string', default: '127.0.0.1:4440' } } });
const listen = new URL(`http://${options.listen}`);

const server = createServer((request, response) => {
  const file = FILES.get(request.url.split('?', 1)[0]);
  const known = request.method === 'GET' || request.method === 'HEAD';
  if (!file || !known) {
    response.writeHead(known ? 404 : 405, { 'content-type': 'text/plain', allow: 'GET, HEAD' });
    response.end(known ? 'not found\n' : 'only GET and HEAD\n');
    return;
  }
  response.writeHead(200, {
    'content-type': TYPES[extname(file.pathname)] ?? 'application/octet-stream',
    'cache-control': 'no-cache',
    'x-content-type-options': 'nosniff',
  });
  if (request.method === 'HEAD') response.end();
  else createReadStream(file).on('error', () => response.destroy()).pipe(response);
});

server.on('error', (error) => {
  console.error(`serve: ${error.message}`);
  process.exitCode = 1;
});
// `hostname` of an http URL leaves out port 80, and keeps the brackets of an IPv6 address, which listen() doesn't take.
server.listen(Number(listen.port || 80), listen.hostname.replace(/^\[|\]$/g, ''), () => {
  console.log(`the page is at http://${listen.hostname}:${server.address().port}/`);
});
