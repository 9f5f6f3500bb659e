// Runs the client conformance suite of the Durable Streams protocol over our clients, and compares the result with expected.json.
//
//   DURABLE_STREAMS=PATH node clients/conformance/run.mjs [js|python]...
//
// The suite is in no registry: PATH is a clone of its repository, whose commit `COMMIT` is read. Nothing of it is kept outside node_modules.

import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const COMMIT = '82f9963ae0b489566352393be9b4796c788c99c2';
/** A suite that ends early must not pass for a short one. */
const TESTS_TOTAL = 269;
/** How long the suite waits for an adapter, in milliseconds. The adapters give up before. */
const COMMAND_MS_MAX = 20_000;
const here = (path) => fileURLToPath(new URL(path, import.meta.url));
/** The suite finds its packages from here, such as the reference server. */
const FOLDER = here('../../tests/web/node_modules/.client-conformance');
const ADAPTERS = {
  js: ['node', here('adapter.mjs')],
  python: [process.env.CLIENT_PYTHON ?? here('../../target/client-python/bin/python'), here('adapter.py')],
};

const source = process.env.DURABLE_STREAMS;
if (!source) {
  console.log(`client conformance NOT RUN: it needs DURABLE_STREAMS, the path of a clone of github.com/durable-streams/durable-streams with ${COMMIT}`);
  process.exit(0);
}
const { runConformanceTests } = await bundled();
const expected = JSON.parse(readFileSync(here('expected.json')));
const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(ADAPTERS);
let differences = 0;
for (const name of names) differences += await compare(name);
process.exit(differences ? 1 : 0);

/** The suite's own runner, without its type annotations. */
async function bundled() {
  rmSync(FOLDER, { recursive: true, force: true });
  mkdirSync(FOLDER, { recursive: true });
  const archive = execFileSync('git', ['-C', source, 'archive', `${COMMIT}:packages/client-conformance-tests`], { maxBuffer: 1 << 26 });
  execFileSync('tar', ['x', '-C', FOLDER], { input: archive });
  const { buildSync } = createRequire(here('../js/package.json'))('esbuild');
  // Beside `test-cases`, where the runner looks for its cases.
  const outfile = join(FOLDER, 'built', 'runner.mjs');
  buildSync({ entryPoints: [join(FOLDER, 'src', 'runner.ts')], outfile, bundle: true, packages: 'external', platform: 'node', format: 'esm', logLevel: 'error' });
  return import(pathToFileURL(outfile));
}

/** Runs the suite over a client; the number of differences from the list. */
async function compare(name) {
  const [clientAdapter, ...clientArgs] = ADAPTERS[name];
  const { total, passed, skipped, failed, results } = await runConformanceTests({ clientAdapter, clientArgs, testTimeout: COMMAND_MS_MAX });
  const { passes, lacks, differs } = expected[name];
  const listed = new Set(differs.flatMap(({ tests }) => tests));
  // A test that needs a feature which the client lacks is skipped.
  const needs = ({ skipReason = '' }) => /^missing features: (.*)$/.exec(skipReason)?.[1].split(', ') ?? [];
  const features = new Set(results.flatMap(needs));
  const others = new Map(results.filter((one) => (!one.passed || one.skipped) && !needs(one).length).map((one) => [`${one.suite}/${one.test}`, one.error ?? one.skipReason]));
  const found = [
    ...[...others].filter(([test]) => !listed.has(test)).map(([test, why]) => `${test} does not pass: ${why}`),
    ...[...listed].filter((test) => !others.has(test)).map((test) => `${test} is listed in expected.json, and passes`),
    ...[...features].filter((feature) => !(feature in lacks)).map((feature) => `${feature} is lacking, and not listed in expected.json`),
    ...Object.keys(lacks).filter((feature) => !features.has(feature)).map((feature) => `${feature} is listed in expected.json, and no test is skipped for it`),
    ...(total === TESTS_TOTAL && passed === passes ? [] : [`${passed} of ${total} tests pass in place of ${passes} of ${TESTS_TOTAL}`]),
  ];
  console.log(`client conformance of clients/${name}: ${passed} of ${total} pass, ${failed} fail, ${skipped} are skipped; ${found.length} differences from expected.json`);
  for (const line of found) console.log(`  ${line}`);
  return found.length;
}
