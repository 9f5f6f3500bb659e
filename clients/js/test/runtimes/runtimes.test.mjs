// The package, as `npm pack` makes it, in the runtimes, module systems, bundlers and compilers that its README names.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';
import { launchChromium } from '../../../../tests/web/browser/chromium.mjs';
import { Server } from '../server.mjs';

const TIMEOUT = { timeout: 300_000 };
const HERE = import.meta.dirname;
const ROOT = join(HERE, '../..');
const MODULES = join(HERE, 'node_modules');
const RESULT = { events: ['published'], shared: ['published'], channel: ['published'], result: [65, 66] };

const runFile = promisify(execFile);
let server;
/** A folder with the package in its `node_modules`. */
let folder;

before(async () => {
  server = await Server.start();
  folder = mkdtempSync(join(tmpdir(), 'encke-runtimes-'));
  const client = join(folder, 'node_modules/@encke/client');
  mkdirSync(client, { recursive: true });
  await runFile('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], { cwd: ROOT });
  const { version } = JSON.parse(readFileSync(join(ROOT, 'package.json')));
  await runFile('tar', ['-xzf', join(folder, `encke-client-${version}.tgz`), '--strip-components=1', '-C', client]);
  for (const file of ['program.mjs', 'program.cjs', 'types.ts']) copyFileSync(join(HERE, file), join(folder, file));
  // The packages of node_modules that are found from the folder.
  mkdirSync(join(folder, 'node_modules/@types'));
  for (const name of ['@types/node', 'undici-types']) symlinkSync(join(MODULES, name), join(folder, 'node_modules', name));
  writeFileSync(join(folder, 'package.json'), '{ "type": "module" }');
});
after(async () => {
  await server?.end();
  if (folder) rmSync(folder, { recursive: true });
});

/** A file of the package for this machine. */
function fileOf(...paths) {
  const path = paths.map((path) => join(MODULES, path)).find(existsSync);
  assert.ok(path, `one of ${paths.join(', ')} is installed`);
  return path;
}

const node = (version) => fileOf(`node-${version}-x64/bin/node`, `node-${version}-arm64/bin/node`);
const bun = () => fileOf('@oven/bun-linux-x64/bin/bun', '@oven/bun-linux-aarch64/bin/bun');
const deno = () => fileOf('@deno/linux-x64-glibc/deno', '@deno/linux-arm64-glibc/deno');
let streams = 0;

/** Runs a program, and parses the JSON that it prints. */
async function run(command, ...args) {
  streams += 1;
  const { stdout } = await runFile(command, [...args, server.url, `stream-${streams}`], { cwd: folder, timeout: 120_000 });
  return JSON.parse(stdout);
}

for (const [name, command, args, expected] of [
  ['Node 20', () => node('20'), [], { ...RESULT, channel: 'no_websocket' }],
  ['Node 22', () => node('22'), [], RESULT],
  ['Node 24', () => node('24'), [], RESULT],
  ['Bun', bun, ['run'], RESULT],
  ['Deno', deno, ['run', '--allow-net', '--allow-env', '--allow-read', '--node-modules-dir=manual'], RESULT],
]) {
  test(`${name} runs every entry`, TIMEOUT, async () => {
    assert.deepEqual(await run(command(), ...args, 'program.mjs'), expected);
  });
}

for (const [name, command, how] of [
  ['Node 20', () => node('20'), 'import'],
  ['Node 22', () => node('22'), 'require'],
  ['Node 24', () => node('24'), 'require'],
  ['Bun', bun, 'require'],
]) {
  test(`CommonJS in ${name}: ${how}`, TIMEOUT, async () => {
    assert.equal((await run(command(), 'program.cjs', how)).created, true);
  });
}

test('a bundle of Vite runs every entry in Chromium', TIMEOUT, async () => {
  writeFileSync(join(folder, 'index.html'), '<!doctype html><script type="module" src="page.js"></script>');
  writeFileSync(join(folder, 'page.js'), "import { run } from './program.mjs';\nglobalThis.run = run;\n");
  await runFile(process.execPath, [join(MODULES, 'vite/bin/vite.js'), 'build', '--logLevel', 'error', folder]);
  const types = { js: 'text/javascript', html: 'text/html' };
  const files = createServer(({ url }, response) => {
    const path = join(folder, 'dist', url === '/' ? 'index.html' : url);
    if (!existsSync(path)) return response.writeHead(404).end();
    response.writeHead(200, { 'Content-Type': types[path.split('.').at(-1)] ?? 'application/octet-stream' }).end(readFileSync(path));
  });
  await once(files.listen(0, '127.0.0.1'), 'listening');
  const browser = await launchChromium();
  try {
    const page = await browser.newPage();
    await page.goto(`http://127.0.0.1:${files.address().port}/`);
    assert.deepEqual(await page.evaluate((url) => globalThis.run(url, 'vite'), server.url), RESULT);
  } finally {
    await browser.close();
    files.close();
  }
});

const DOM = { lib: ['es2022', 'dom', 'dom.iterable'], types: [] };
const NODE = { lib: ['es2022'], types: ['node'] };
for (const compiler of ['typescript-5.0', 'typescript-5.9', 'typescript']) {
  for (const [name, options] of [
    ['nodenext, DOM', { module: 'nodenext', ...DOM }],
    ['nodenext, @types/node without DOM', { module: 'nodenext', ...NODE }],
    ['bundler, DOM', { module: 'esnext', moduleResolution: 'bundler', ...DOM }],
    ['bundler, @types/node without DOM', { module: 'esnext', moduleResolution: 'bundler', ...NODE }],
  ]) {
    test(`types: ${compiler}, ${name}, strict, skipLibCheck: false`, TIMEOUT, async () => {
      const checks = { strict: true, skipLibCheck: false, exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true, noEmit: true, target: 'es2022' };
      const project = join(folder, `${compiler}-${name.replace(/\W+/g, '-')}.json`);
      writeFileSync(project, JSON.stringify({ compilerOptions: { ...checks, ...options }, files: ['types.ts'] }));
      await runFile(process.execPath, [join(MODULES, compiler, 'bin/tsc'), '-p', project], { cwd: folder }).catch(({ stdout, message }) => assert.fail(stdout || message));
    });
  }
}
