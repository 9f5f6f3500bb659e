// The programs of the README, and the length of the chat that it names.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { blocks } from '../../../tests/web/docs/blocks.mjs';
import { Server } from './server.mjs';

const ROOT = join(import.meta.dirname, '..');
const EXPECTED = [
  /^news \[ \{ text: 'Hello' \} \]\nnews \[ \{ text: 'Good bye' \} \]\ndone\n$/,
  /\[ \{ text: 'Hello' \} \]\n$/,
  /^cat-small\.png\n$/,
];

test('the programs of the README print what they promise', { timeout: 60_000 }, async () => {
  const server = await Server.start();
  try {
    const programs = blocks(join(ROOT, 'README.md')).filter(({ language }) => language === 'js');
    assert.equal(programs.length, EXPECTED.length);
    for (const [index, { text }] of programs.entries()) {
      const program = spawn(process.execPath, ['--input-type=module', '-e', text.replaceAll('http://127.0.0.1:4437', server.url)], { cwd: ROOT, stdio: ['ignore', 'pipe', 'inherit'] });
      const chunks = await program.stdout.setEncoding('utf8').toArray();
      assert.match(chunks.join(''), EXPECTED[index]);
    }
  } finally {
    await server.end();
  }
});

test('the chat has at most 40 lines', () => {
  assert.ok(readFileSync(join(ROOT, 'example/chat.html'), 'utf8').trim().split('\n').length <= 40);
});
