// Tests that the packages of adapters share: what a package declares and has, and the programs of its README.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { blocks } from '../../../tests/web/docs/blocks.mjs';
import { Server } from '../../js/test/server.mjs';

/** Tests the package in a folder. `printed` has what each program of its README prints. */
export function testPackage(root, printed) {
  test('the package has each entry with its types, and nothing but what is built', () => {
    const manifest = JSON.parse(readFileSync(join(root, 'package.json')));
    const pack = ['pack', '--dry-run', '--json', '--ignore-scripts'];
    const [{ files }] = JSON.parse(execFileSync('npm', pack, { cwd: root, stdio: ['ignore', 'pipe', 'ignore'] }));
    const paths = files.map(({ path }) => path);
    for (const entry of Object.values(manifest.exports)) {
      for (const file of [entry, entry.replace(/\.js$/, '.d.ts')]) assert.ok(paths.includes(file.slice(2)), `${file} is there`);
    }
    // `npm pack` adds the licence.
    const others = paths.filter((path) => !/^dist\/.*\.(js|d\.ts)$/.test(path) && path !== 'LICENSE');
    assert.deepEqual(others.sort(), ['README.md', 'package.json']);
  });

  test('the programs of the README print what they promise', { timeout: 60_000 }, async () => {
    const server = await Server.start();
    try {
      const programs = blocks(join(root, 'README.md')).filter(({ language }) => language === 'js');
      assert.equal(programs.length, printed.length);
      for (const [index, { text }] of programs.entries()) {
        const args = ['--input-type=module', '-e', text.replaceAll('http://127.0.0.1:4437', server.url)];
        const program = spawn(process.execPath, args, { cwd: root, stdio: ['ignore', 'pipe', 'inherit'] });
        const chunks = await program.stdout.setEncoding('utf8').toArray();
        assert.equal(chunks.join(''), printed[index]);
      }
    } finally {
      await server.end();
    }
  });
}
