#!/usr/bin/env node
// Posts files as jobs, and prints their numbers.
//
//   node submit.mjs FILE... [--pool http://127.0.0.1:4437/v1/pool/thumbnails]

import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';

const { values: options, positionals: files } = parseArgs({
  allowPositionals: true,
  options: { pool: { type: 'string', default: 'http://127.0.0.1:4437/v1/pool/thumbnails' } },
});
if (files.length === 0) throw new Error('say which files: node submit.mjs FILE...');
for (const file of files) {
  const answer = await fetch(options.pool, { method: 'POST', body: readFileSync(file) });
  if (!answer.ok) throw new Error(`${file}: ${answer.status} ${await answer.text()}`);
  const { job } = await answer.json();
  console.log(`${file} is job ${job}`);
}
