#!/usr/bin/env node
// Runs the published conformance suite for Durable Streams against the real binary. All of its tests must pass.
//
//   node conformance/run.mjs                        over HTTP/1.1 without TLS
//   node conformance/run.mjs --over plain,tls,http2  over each of these, at once; the suite mostly waits
//   node conformance/run.mjs --over access          with access control, by an API key
//   node conformance/run.mjs --over killed          with a server that is killed between groups of tests
//   node conformance/run.mjs --over node,fleet      at one node of three, and with each request at another node

import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { selfSigned } from '../certificate.mjs';
import { endWithUs } from '../child.mjs';
import { BINARY, Encke } from '../encke.mjs';
import { Fleet } from '../fleet.mjs';
import { fixedAddress } from '../ports.mjs';

/** How many tests the pinned version of the suite has; a suite that ends early must not pass for a short one. */
const TESTS_TOTAL = 338;
/** How many tests may be tried again in a run. On a quiet machine none is. */
const RETRIED_MAX = 5;
const SUITE = '@durable-streams/server-conformance-tests';
const ARTIFACTS = fileURLToPath(new URL('../../artifacts', import.meta.url));
const WEB = fileURLToPath(new URL('..', import.meta.url));
/** The origin of the suite's preflight request. */
const ORIGIN = 'https://example.com';
/** The suite's receiver of webhooks is on this machine. */
const ARGS = ['--cors-origins', ORIGIN, '--tuning', 'webhook-networks=127.0.0.0/8'];
/** The suite has 41 groups of tests; with far fewer kills something else was tested. */
const KILLS_LEAST = 30;
/** What the suite may speak: with TLS or without, and the protocol of each of its requests in the access log. */
const TRANSPORTS = {
  plain: { tls: false, protocol: 'HTTP/1.1' },
  tls: { tls: true, protocol: 'HTTP/1.1' },
  http2: { tls: true, protocol: 'HTTP/2.0' },
  access: { access: true, protocol: 'HTTP/1.1' },
  killed: { kills: true, protocol: 'HTTP/1.1' },
  node: { fleet: true, protocol: 'HTTP/1.1' },
  fleet: { fleet: true, protocol: 'HTTP/1.1' },
};

const { values: options } = parseArgs({
  options: { over: { type: 'string', default: 'plain' } },
});
const transports = options.over.split(',');
for (const name of transports) {
  if (!Object.hasOwn(TRANSPORTS, name)) throw new Error(`--over ${name}: must be of ${Object.keys(TRANSPORTS).join(', ')}`);
}

const require = createRequire(import.meta.url);
const suiteVersion = installedVersion(SUITE);
console.log(`${SUITE} ${suiteVersion} against ${BINARY}`);

const runs = await Promise.all(transports.map(runSuite));
for (const [index, tests] of runs.entries()) {
  const wrong = failures(tests);
  console.log(`over ${transports[index]}:`);
  const retried = tests.filter((test) => test.meta?.retried);
  for (const { fullName } of retried) console.log(`  was tried again: ${fullName}`);
  if (retried.length > RETRIED_MAX) {
    console.log(`more than ${RETRIED_MAX} tests were tried again: that is no machine that was busy for a moment`);
    process.exitCode = 1;
  }
  for (const line of wrong) console.log(line);
  if (wrong.length > 0) console.log('\nthe whole report is in tests/artifacts');
  console.log(`${tests.length - wrong.length} of ${tests.length} pass`);
  console.log(`${tests.length - wrong.length} passed, ${wrong.length} failed`);
  if (wrong.length > 0) process.exitCode = 1;
}

/** Starts a server with data of its own, runs the suite, stops the server; returns the tests as vitest reports them. */
async function runSuite(transport) {
  const { tls, protocol, fleet, access, kills } = TRANSPORTS[transport];
  if (fleet) return runSuiteOnFleet(transport);
  const reportFile = join(ARTIFACTS, transport === 'plain' ? 'conformance.json' : `conformance-${transport}.json`);
  const folder = mkdtempSync(join(tmpdir(), 'encke-conformance-'));
  try {
    const accessLog = join(folder, 'access.log');
    const certificate = tls ? selfSigned(folder) : undefined;
    const key = access ? randomBytes(32).toString('hex') : undefined;
    const args = [...ARGS, '--access-log', 'json', '--tuning', `access-log-file=${accessLog}`];
    if (key) args.push('--config', accessFile(folder, key));
    const listen = kills ? await fixedAddress() : undefined;
    const settings = { data: join(folder, 'data'), listen, tls: certificate, args };
    let server = await Encke.start(settings);
    const killer = kills ? await startKiller(async () => {
      await server.kill();
      server = await Encke.start(settings);
    }) : undefined;
    await vitest(server.url, reportFile, {
      NODE_EXTRA_CA_CERTS: certificate?.cert,
      CONFORMANCE_HTTP2: protocol === 'HTTP/2.0' ? 'yes' : undefined,
      CONFORMANCE_KEY: key,
      CONFORMANCE_KILLER: killer?.url,
    });
    killer?.end();
    const stop_ms = await server.stop();
    console.log(`${transport}: the server stopped by itself ${Math.round(stop_ms)} ms after SIGTERM`);
    checkProtocol(accessLog, protocol);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  return readReport(reportFile);
}

/** A configuration with access control, which lets this key do all that the suite does. */
function accessFile(folder, key) {
  const file = join(folder, 'access.toml');
  const sha256 = createHash('sha256').update(key).digest('hex');
  const actions = ['read', 'append', 'create', 'delete', 'work'];
  const grants = `[{ actions = ${JSON.stringify(actions)}, paths = ["/v1/stream/**"] }]`;
  writeFileSync(file, `[[access.api-keys]]\nname = "suite"\nsha256 = "${sha256}"\ngrants = ${grants}\n`, { mode: 0o600 });
  return file;
}

/** A server that calls `restart` at each request: the suite runs in another process. */
async function startKiller(restart) {
  let restarts = 0;
  const server = createServer(async (_, response) => {
    try {
      await restart();
      restarts += 1;
      response.end();
    } catch (error) {
      response.writeHead(500).end(String(error));
    }
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const end = () => {
    server.close();
    console.log(`killed: the server was killed ${restarts} times`);
    if (restarts < KILLS_LEAST) throw new Error(`the server was killed only ${restarts} times`);
  };
  return { url: `http://127.0.0.1:${server.address().port}/`, end };
}

/** The same against a fleet: one node of three, or a proxy that sends each request to another node. */
async function runSuiteOnFleet(transport) {
  const reportFile = join(ARTIFACTS, `conformance-${transport}.json`);
  const folder = mkdtempSync(join(tmpdir(), 'encke-conformance-'));
  try {
    const fleet = await Fleet.start({ folder, args: ARGS });
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

/** Lines that tell what has failed, and why. */
function failures(tests) {
  return failedOf(tests).map((test) => {
    const reason = (test.failureMessages ?? []).join('\n').split('\n').slice(0, 8).join('\n      ');
    return `  ${test.status}: ${test.fullName}\n      ${reason}`;
  });
}

/** The version of an installed package that doesn't export its package.json. */
function installedVersion(name) {
  const manifest = new URL(`../node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(manifest, 'utf8')).version;
}
