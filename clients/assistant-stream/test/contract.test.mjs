// The tests that are in the package `assistant-stream`, with a store of Encke in place of its store in memory.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { endWithUs } from '../../../tests/web/child.mjs';
import { Server } from '../../js/test/server.mjs';

const ROOT = join(import.meta.dirname, '..');
const VITEST = join(ROOT, '../../tests/web/node_modules/vitest/vitest.mjs');
const PASSED = 71;
/** Tests of what only a store in memory has. */
const LEFT_OUT = [
  'does not sweep', // The map of its streams.
  'wakes a waiting reader when its stream expires', // Timers of the test; a stream of Encke that is read does not expire.
  'keeps a long TTL past the timer limit', // Timers of the test.
  'maxEntriesPerStream',
  'maxStreams',
  'gc sweeper',
  'dispose clears the gc interval',
];

test('the tests of the package', { timeout: 120_000 }, async () => {
  const server = await Server.start();
  try {
    const args = [VITEST, 'run', '--config', 'test/contract/vitest.config.mjs', '--testNamePattern', `^(?!.*(${LEFT_OUT.join('|')}))`];
    const run = spawn(process.execPath, args, { cwd: ROOT, env: { ...process.env, ENCKE_URL: server.url }, stdio: ['ignore', 'pipe', 'pipe'] });
    endWithUs(run);
    const [output, errors] = await Promise.all([run.stdout, run.stderr].map(async (stream) => (await stream.setEncoding('utf8').toArray()).join('')));
    assert.ok(output, errors);
    const report = JSON.parse(output);
    const tests = report.testResults.flatMap(({ assertionResults }) => assertionResults);
    const failed = tests.filter(({ status }) => status === 'failed').map(({ fullName, failureMessages }) => `${fullName}: ${failureMessages}`);
    assert.deepEqual(failed, []);
    assert.equal(report.numPassedTests, PASSED);
  } finally {
    await server.end();
  }
});
