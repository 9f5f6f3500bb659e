#!/usr/bin/env node
// Runs the published conformance suite for Durable Streams against the real binary, and compares what passes with
// expected-failures.txt. The list must be right in both directions: a test that fails without being listed is an error,
// and so is a listed one that passes or that the suite doesn't have.
//
//   node conformance/run.mjs                        compare, over HTTP/1.1 without TLS
//   node conformance/run.mjs --over plain,tls,http2  compare over each of these, at once; the suite mostly waits
//   node conformance/run.mjs --over node,fleet      compare at one node of three, and with each request at another node
//   node conformance/run.mjs --update               write the list anew from this run

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { selfSigned } from '../certificate.mjs';
import { endWithUs } from '../child.mjs';
import { BINARY, Encke } from '../encke.mjs';
import { Fleet } from '../fleet.mjs';

/** How many tests the pinned version of the suite has; a suite that ends early must not pass for a short one. */
const TESTS_TOTAL = 338;
const SUITE = '@durable-streams/server-conformance-tests';
const LIST = new URL('expected-failures.txt', import.meta.url);
const ARTIFACTS = fileURLToPath(new URL('../../artifacts', import.meta.url));
const WEB = fileURLToPath(new URL('..', import.meta.url));
/** The origin of the suite's preflight request. */
const ORIGIN = 'https://example.com';
/** What the suite may speak: with TLS or without, and the protocol of each of its requests in the access log. */
const TRANSPORTS = {
  plain: { tls: false, protocol: 'HTTP/1.1' },
  tls: { tls: true, protocol: 'HTTP/1.1' },
  http2: { tls: true, protocol: 'HTTP/2.0' },
  node: { fleet: true, protocol: 'HTTP/1.1' },
  fleet: { fleet: true, protocol: 'HTTP/1.1' },
};

const { values: options } = parseArgs({
  options: { update: { type: 'boolean', default: false }, over: { type: 'string', default: 'plain' } },
});
const transports = options.over.split(',');
for (const name of transports) {
  if (!Object.hasOwn(TRANSPORTS, name)) throw new Error(`--over ${name}: must be of ${Object.keys(TRANSPORTS).join(', ')}`);
}

const require = createRequire(import.meta.url);
const suiteVersion = installedVersion(SUITE);
console.log(`${SUITE} ${suiteVersion} against ${BINARY}`);

const runs = await Promise.all(transports.map(runSuite));
if (options.update) writeList(failedOf(runs[0]).map((test) => test.fullName));
for (const [index, tests] of runs.entries()) {
  const wrong = compare(tests, readList());
  const failed = failedOf(tests).length;
  console.log(`over ${transports[index]}:`);
  for (const line of wrong) console.log(line);
  if (wrong.length > 0) console.log(`\n${wrong.length} differ from expected-failures.txt; the whole report is in tests/artifacts`);
  console.log(`${tests.length - failed} of ${tests.length} pass`);
  console.log(`${tests.length - failed} passed, ${failed} failed`);
  if (wrong.length > 0) process.exitCode = 1;
}

/** Starts a server with data of its own, runs the suite, stops the server; returns the tests as vitest reports them. */
async function runSuite(transport) {
  const { tls, protocol, fleet } = TRANSPORTS[transport];
  if (fleet) return runSuiteOnFleet(transport);
  const reportFile = join(ARTIFACTS, transport === 'plain' ? 'conformance.json' : `conformance-${transport}.json`);
  const folder = mkdtempSync(join(tmpdir(), 'encke-conformance-'));
  try {
    const accessLog = join(folder, 'access.log');
    const certificate = tls ? selfSigned(folder) : undefined;
    const args = ['--cors-origins', ORIGIN, '--access-log', 'json', '--tuning', `access-log-file=${accessLog}`];
    const server = await Encke.start({ data: join(folder, 'data'), tls: certificate, args });
    await vitest(server.url, reportFile, {
      NODE_EXTRA_CA_CERTS: certificate?.cert,
      CONFORMANCE_HTTP2: protocol === 'HTTP/2.0' ? 'yes' : undefined,
    });
    const stop_ms = await server.stop();
    console.log(`${transport}: the server stopped by itself ${Math.round(stop_ms)} ms after SIGTERM`);
    checkProtocol(accessLog, protocol);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return readReport(reportFile);
}

/** The same against a fleet: one node of three, or a proxy that sends each request to another node. */
async function runSuiteOnFleet(transport) {
  const reportFile = join(ARTIFACTS, `conformance-${transport}.json`);
  const folder = mkdtempSync(join(tmpdir(), 'encke-conformance-'));
  try {
    const fleet = await Fleet.start({ folder, args: ['--cors-origins', ORIGIN] });
    await vitest(transport === 'node' ? fleet.nodes[0].url : fleet.url, reportFile, {});
    const stop_ms = await fleet.stop();
    console.log(`${transport}: the nodes stopped by themselves ${Math.round(stop_ms)} ms after SIGTERM`);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return readReport(reportFile);
}

/** The tests of a report. */
function readReport(reportFile) {
  const report = JSON.parse(readFileSync(reportFile, 'utf8'));
  const tests = report.testResults.flatMap((file) => file.assertionResults);
  const names = new Set(tests.map((test) => test.fullName));
  if (names.size !== TESTS_TOTAL || tests.length !== TESTS_TOTAL) {
    throw new Error(`the suite reported ${tests.length} tests under ${names.size} names instead of ${TESTS_TOTAL}`);
  }
  return tests;
}

/** Runs vitest to its end. Its exit code says only that some test failed, which the comparison judges. */
function vitest(url, reportFile, environment) {
  mkdirSync(ARTIFACTS, { recursive: true });
  rmSync(reportFile, { force: true });
  const args = [join(require.resolve('vitest/package.json'), '../vitest.mjs'), 'run', '--config', 'conformance/vitest.config.mjs'];
  const child = spawn(process.execPath, [...args, '--reporter=json', `--outputFile=${reportFile}`], {
    cwd: WEB,
    env: { ...process.env, CONFORMANCE_URL: url, NO_COLOR: '1', ...environment },
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  endWithUs(child);
  return new Promise((resolve, reject) => child.once('error', reject).once('exit', resolve));
}

/** Throws unless the server saw every request of the suite by `protocol`. */
function checkProtocol(accessLog, protocol) {
  const entries = readFileSync(accessLog, 'utf8').trimEnd().split('\n').map((line) => JSON.parse(line));
  const requests = entries.filter((entry) => entry.path.startsWith('/v1/'));
  const other = requests.find((entry) => entry.protocol !== protocol);
  if (other) throw new Error(`a request came by another protocol than ${protocol}: ${JSON.stringify(other)}`);
  if (requests.length < TESTS_TOTAL) throw new Error(`the server saw only ${requests.length} requests of ${TESTS_TOTAL} tests`);
}

function failedOf(tests) {
  return tests.filter((test) => test.status !== 'passed');
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
