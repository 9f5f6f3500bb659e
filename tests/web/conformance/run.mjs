#!/usr/bin/env node
// Runs the published conformance suite for Durable Streams against the real binary, and compares what passes with
// expected-failures.txt. The list must be right in both directions: a test that fails without being listed is an error,
// and so is a listed one that passes or that the suite doesn't have.
//
//   node conformance/run.mjs             compare
//   node conformance/run.mjs --update    write the list anew from this run

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { BINARY, Encke } from '../encke.mjs';

/** How many tests the pinned version of the suite has; a suite that ends early must not pass for a short one. */
const TESTS_TOTAL = 338;
const SUITE = '@durable-streams/server-conformance-tests';
const LIST = new URL('expected-failures.txt', import.meta.url);
const REPORT = fileURLToPath(new URL('../../artifacts/conformance.json', import.meta.url));
const WEB = fileURLToPath(new URL('..', import.meta.url));

const { values: options } = parseArgs({ options: { update: { type: 'boolean', default: false } } });

const require = createRequire(import.meta.url);
const suiteVersion = installedVersion(SUITE);
console.log(`${SUITE} ${suiteVersion} against ${BINARY}`);

const tests = await runSuite();
const failed = tests.filter((test) => test.status !== 'passed');
const passed = tests.length - failed.length;
if (options.update) writeList(failed.map((test) => test.fullName));
const wrong = compare(tests, readList());

for (const line of wrong) console.log(line);
if (wrong.length > 0) console.log(`\n${wrong.length} differ from expected-failures.txt; the whole report is in tests/artifacts`);
console.log(`${passed} of ${tests.length} pass`);
console.log(`${passed} passed, ${failed.length} failed`);
process.exitCode = wrong.length > 0 ? 1 : 0;

/** Starts a server with data of its own, runs the suite, stops the server; returns the tests as vitest reports them. */
async function runSuite() {
  const data = mkdtempSync(join(tmpdir(), 'encke-conformance-'));
  try {
    const server = await Encke.start({ data });
    await vitest(server.url);
    const stop_ms = await server.stop();
    console.log(`the server stopped by itself ${Math.round(stop_ms)} ms after SIGTERM`);
  } finally {
    rmSync(data, { recursive: true, force: true });
  }
  const report = JSON.parse(readFileSync(REPORT, 'utf8'));
  const tests = report.testResults.flatMap((file) => file.assertionResults);
  const names = new Set(tests.map((test) => test.fullName));
  if (names.size !== TESTS_TOTAL || tests.length !== TESTS_TOTAL) {
    throw new Error(`the suite reported ${tests.length} tests under ${names.size} names instead of ${TESTS_TOTAL}`);
  }
  return tests;
}

/** Runs vitest to its end. Its exit code says only that some test failed, which the comparison judges. */
function vitest(url) {
  mkdirSync(join(REPORT, '..'), { recursive: true });
  rmSync(REPORT, { force: true });
  const args = [join(require.resolve('vitest/package.json'), '../vitest.mjs'), 'run', '--config', 'conformance/vitest.config.mjs'];
  const child = spawn(process.execPath, [...args, '--reporter=json', `--outputFile=${REPORT}`], {
    cwd: WEB,
    env: { ...process.env, CONFORMANCE_URL: url, NO_COLOR: '1' },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  return new Promise((resolve, reject) => child.once('error', reject).once('exit', resolve));
}

/** Lines that tell where the run and the list disagree; none when the list is right. */
function compare(tests, listed) {
  const byName = new Map(tests.map((test) => [test.fullName, test]));
  const wrong = [];
  for (const [name, test] of byName) {
    if (test.status === 'passed' || listed.includes(name)) continue;
    const reason = (test.failureMessages ?? []).join('\n').split('\n').slice(0, 8).join('\n      ');
    wrong.push(`  ${test.status}, but not listed: ${name}\n      ${reason}`);
  }
  for (const name of listed) {
    if (!byName.has(name)) wrong.push(`  listed, but not in the suite: ${name}`);
    else if (byName.get(name).status === 'passed') wrong.push(`  listed, but passes: ${name}`);
  }
  const sorted = [...new Set(listed)].sort();
  if (sorted.join('\n') !== listed.join('\n')) wrong.push('  the list is not sorted, or names a test twice');
  return wrong;
}

function readList() {
  const lines = readFileSync(LIST, 'utf8').split('\n');
  return lines.filter((line) => line !== '' && !line.startsWith('#'));
}

function writeList(names) {
  const head = [
    `# Tests of ${SUITE} ${suiteVersion} that Encke doesn't pass yet, by full name, sorted.`,
    '# `make conformance` fails when this list is wrong in either direction; `make conformance-update` writes it anew.',
  ];
  writeFileSync(LIST, [...head, ...names.sort(), ''].join('\n'));
  console.log(`wrote ${names.length} names to expected-failures.txt`);
}

/** The version of an installed package that doesn't export its package.json. */
function installedVersion(name) {
  const manifest = new URL(`../node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(manifest, 'utf8')).version;
}
