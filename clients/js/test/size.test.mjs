// How much each entry adds to a page, and that the package declares what it has.

import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import { buildSync } from 'esbuild';

const ROOT = join(import.meta.dirname, '..');
/** Compressed bytes. `shared` has the whole client, for browsers where nothing can be shared. */
const BYTES_MAX = { '.': 7_900, './websocket': 6_000, './shared': 11_800, './jobs': 6_000 };

const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json')));

test('each entry is as small as it must be, and has its types', () => {
  assert.equal(manifest.dependencies, undefined);
  assert.deepEqual(Object.keys(manifest.exports), Object.keys(BYTES_MAX));
  for (const [entry, file] of Object.entries(manifest.exports)) {
    const path = join(ROOT, file);
    assert.ok(existsSync(path.replace(/\.js$/, '.d.ts')), `${entry} has types`);
    const { outputFiles, warnings } = buildSync({ entryPoints: [path], bundle: true, minify: true, format: 'esm', write: false });
    assert.deepEqual(warnings, []);
    const { length } = gzipSync(outputFiles[0].contents, { level: 9 });
    console.log(`${entry}: ${length} bytes of at most ${BYTES_MAX[entry]}`);
    assert.ok(length <= BYTES_MAX[entry], `${entry} has ${length} bytes`);
  }
});
