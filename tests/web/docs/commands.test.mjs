// Every command of the documentation runs as it is written, in order, against a fresh server on the default port; where that may be
// taken, on a free one, which commands then name.
//
// The shell and console blocks of each document run in one shell and one page; a block of TOML is the file that its first line
// names. What continues by itself (an event stream, a worker, a server) runs until its document ends. All other commands must
// exit with 0, and a response with an error is a failure. `NOT_RUN` has the commands that do not run here, each with the reason.
//
// scripts/own-network.sh gives this test a network of its own, in which all ports are free.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, relative } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import WebSocket from 'ws';
import { launchChromium } from '../browser/chromium.mjs';
import { BINARY, Encke } from '../encke.mjs';
import { fixedPort } from '../ports.mjs';
import { blocks, commands } from './blocks.mjs';
import { Shell, until } from './shell.mjs';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '');
/** Directories of the system that commands use, if they are this test's own; then its network is, too. */
const OWN = process.env.OWN_NETWORK_DIR;
const DEFAULT_PORT = 4437;
const PORT = OWN ? DEFAULT_PORT : await fixedPort();
const LISTEN = `127.0.0.1:${PORT}`;
const URL_OF_SERVER = `http://${LISTEN}`;

/** Commands that do not run here: a pattern for the whole command, and why. */
const NOT_RUN = [
  [/^make run\b/, 'builds, then runs `encke serve`, as this test does; scripts/clean-root.sh runs it'],
  [/^make test/, 'runs this test'],
  [/^make fleet\b/, 'runs until it is stopped; tests/system/fleet.rs has fleets'],
  [/^nats-server |--fleet nats:/, 'needs brokers; tests/system/fleet.rs has them'],
  [/^(docker|podman) /, 'needs a container runtime'],
  [/^sudo |^systemctl |\/etc\/encke\/|^tar xzf encke-|-linux-gnu\/encke /, 'changes the system; scripts/try-packages.sh does it in a clean root'],
  [/^kubectl /, 'needs a cluster'],
  [/^(nix|brew|cargo install) /, 'builds the server again, with what is not installed here'],
  [/--tls-cert chain\.pem\b/, 'needs a certificate'],
  [/\bstreams\.example\b/, 'needs the service that is left; tests/web/clients/import.test.mjs has another server'],
  [/\b127\.0\.0\.1:4438\b|^node -e .*data\/streams/, 'needs a server of its own; tests/web/clients/import.test.mjs has one, and runs this list'],
  [/\bchrt -i 0\b/, 'keeps all processors busy until it is killed'],
  [/^encke-bench flood -n 18900\b|^sleep 10; for upgrade in\b/, 'loads the machine for minutes, by a program that is not installed with the server'],
];
/** Parts of commands that are left out, and why. */
const LEFT_OUT = [[/\bnpm ci && /, 'needs a network; `make` has installed the packages']];
/** Words of commands, and what stands in their place where default ports may be taken. */
const OTHER_PORTS = [
  [/\b4437\b/g, PORT],
  [/\bexamples\/quakes\b.*\bnode serve\.mjs\b/, '$& --listen 127.0.0.1:0'],
  [/\bexamples\/thumbnails\b.*\bnode serve\.mjs\b/, `$& --listen 127.0.0.1:0 --encke ${URL_OF_SERVER}`],
  [/\bexamples\/chat-ai\b.*\bnode serve\.mjs\b/, `$& 0 ${URL_OF_SERVER}`],
  [/\bnode feed\.mjs\b/, `$& --url ${URL_OF_SERVER}/v1/stream/quakes`],
  [/\bnode (worker|submit)\.mjs [\w.]+/, `$& --pool ${URL_OF_SERVER}/v1/pool/thumbnails`],
];
/** Exit codes besides 0 that the document states. */
const OTHER_CODES = [[/^encke doctor --connections 1000000 /, [5]]];
/** Commands that continue until their document ends. */
const CONTINUES = [/^curl -N /, /^while :/, /^(\w+=\S+ )?encke serve( |$)/, /\bnode (serve|worker|feed)\.mjs\b/, /^encke import .*--follow$/];
/** What continues may end when the server says so. */
const ENDED_BY_SERVER = /^event: removed$/m;
const SERVES = /^(\w+=\S+ )?encke serve( |$)/;
/**
 * What succeeds once a program that continues has done its part, which is before a reader types it: reports of a worker when it has the
 * job, and reads of the stream that the feed makes.
 */
const FOLLOWS_ANOTHER = [/\/(ack|refuse|extend)\?attempt=/, /\/quakes\?offset=-1/];
/** What commands print: document, commands, and what one of them prints; a string is the beginning of a block with the output. */
const PRINTED = [
  ['README.md', /live=sse/, /\{"text":"Hello, world"\}/],
  ['docs/events.md', /v1\/events/, /"stream":"news".*"messages":\[\{"text":"in a page"\}\]/],
  ['docs/migrate.md', /--verify$/, 'chat/ann: 2 records'],
  ['docs/pools.md', /work\?worker=anna/, 'event: job'],
  ['docs/pools.md', /\/job\/\$job +#/, /"state":"done"/],
  ['docs/start.md', /Bearer \$ann/, /\{"text":"Hello, Ann"\}/],
];

/** The documents to run; by default all. If it is set, no browser starts and `js` blocks are skipped: `make test` runs the README without a browser. */
const ONLY = process.env.DOCUMENTS?.split(' ');

let browser;
before(async () => {
  if (!ONLY) browser = await launchChromium();
});
after(() => browser?.close());

for (const name of ONLY ?? []) assert.ok(documents().includes(join(ROOT, name)), `DOCUMENTS: ${name} has no commands`);
for (const file of documents()) {
  const name = relative(ROOT, file);
  if (ONLY && !ONLY.includes(name)) continue;
  const all = blocks(file).filter(({ language }) => language !== 'js' || !ONLY);
  // Commands of operations would write into directories of the system.
  const skip = !OWN && all.some(({ text }) => /\/(var\/lib|mnt)\//.test(text)) && 'this system allows no mount namespace';
  test(`commands of ${name}`, { skip }, () => runs(name, all));
}

test('commands that the server prints at its start', async () => {
  const directory = scratch();
  const server = await Encke.start({ data: join(directory, 'data'), listen: LISTEN });
  const text = server.output.split('\n').filter((line) => line.startsWith('  curl ')).join('\n');
  await server.stop();
  assert.equal(text.split('\n').length, 3, server.output);
  const dedented = text.replace(/^ +/gm, '');
  await runs('encke serve', [{ language: 'sh', line: 1, text: dedented }], [['encke serve', /live=sse/, /Hello, world/]]);
});

test('paths of the text at /', async () => {
  const server = await Encke.start({ data: join(scratch(), 'data'), listen: LISTEN });
  try {
    const put = (path, type, body) => fetch(server.url + path, { method: 'PUT', headers: { 'Content-Type': type }, body });
    assert.equal((await put('/v1/stream/hello', 'text/plain')).status, 201);
    assert.equal((await put('/v1/pool/hello', 'application/json', '{"type":"claim"}')).status, 201);
    const wakes = JSON.stringify({ type: 'pull-wake', pattern: 'hello', wake_stream: 'wakes' });
    assert.equal((await put('/v1/stream/__ds/subscriptions/hello', 'application/json', wakes)).status, 201);
    const values = { '{name}': 'hello', '{id}': 'hello', '{offset}': '-1', '{worker}': 'anna' };
    const text = await (await fetch(server.url)).text();
    const pathsIn = (line) => [...line.matchAll(/\s(\/\S+)/g)].map(([, path]) => path);
    const ofWebSocket = (line) => line.trimStart().startsWith('WebSocket');
    const lines = text.split('\n');
    for (const path of lines.filter(ofWebSocket).flatMap(pathsIn)) {
      const socket = new WebSocket(server.url.replace('http', 'ws') + path.replace('{name}', 'hello'));
      await once(socket, 'open');
      socket.terminate();
    }
    const paths = lines.filter((line) => !ofWebSocket(line)).flatMap(pathsIn);
    assert.ok(paths.length >= 9, text);
    for (const path of paths) {
      // Two streams of one request have two names.
      const named = path.replace('stream={name}&stream={name}', 'stream={name}');
      const request = server.url + named.replace(/\{\w+\}/g, (value) => values[value] ?? value);
      const stop = new AbortController();
      const response = await fetch(request, { signal: stop.signal });
      assert.ok(response.ok, `${request}: ${response.status}`);
      stop.abort();
    }
  } finally {
    await server.stop();
  }
});

/** The documents with commands. */
function documents() {
  const folder = (path) => readdirSync(join(ROOT, path)).filter((name) => name.endsWith('.md')).map((name) => join(ROOT, path, name));
  const examples = readdirSync(join(ROOT, 'examples')).map((name) => join(ROOT, 'examples', name, 'README.md'));
  return [join(ROOT, 'README.md'), ...folder('docs'), ...folder('docs/decisions'), ...examples]
    .filter((file) => blocks(file).some(({ language }) => language === 'sh' || language === 'js'));
}

/** Runs the blocks of a document. */
async function runs(name, all, printed = PRINTED) {
  const directory = scratch();
  const run = { name, directory, done: [], continuing: [] };
  const home = join(directory, 'home');
  for (const path of ['bin', 'home']) mkdirSync(join(directory, path));
  symlinkSync(BINARY, join(directory, 'bin/encke'));
  // A response with an error is an exit code.
  writeFileSync(join(home, '.curlrc'), 'fail-with-body\nno-progress-meter\n');
  const example = /^examples\//.test(name);
  run.server = await Encke.start({ data: join(directory, 'data'), listen: LISTEN });
  run.shell = new Shell({ cwd: example ? ROOT : home, directory, env: environment(directory, home) });
  const logged = [];
  try {
    run.page = await browser?.newPage();
    // The messages that the block logs, without those of the browser, such as one for a missing icon.
    run.page?.on('console', (message) => message.type() === 'log' && logged.push(message.text()));
    run.page?.on('pageerror', (error) => logged.push(`error: ${error.message}`));
    for (const block of all) await runBlock(run, block, home, logged);
    for (const [document, of, wanted] of printed) {
      if (document !== name) continue;
      const text = typeof wanted === 'string' ? shown(all, wanted) : wanted;
      const commands = run.done.filter((one) => of.test(one.text));
      assert.ok(commands.length > 0, `${name}: no command is like ${of}`);
      await until(`${name}: ${of} prints ${text}: ${commands.map((one) => one.output())}`, () => commands.some((one) => text.test(one.output())));
    }
    for (const { alive, text, output } of run.continuing) {
      assert.ok(alive() || ENDED_BY_SERVER.test(output()), `ended: ${text}\n${output()}`);
    }
  } finally {
    await run.page?.close();
    run.shell.end();
    await run.server?.stop();
  }
}

/** The output that a block without a language shows. Numbers differ from run to run, and so do texts of which only the beginning is shown. */
function shown(all, beginning) {
  const block = all.find(({ language, text }) => language === '' && text.startsWith(beginning));
  assert.ok(block, `no block begins with ${beginning}`);
  const literal = block.text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return new RegExp(literal.replace(/\d+/g, '\\d+').replace(/"[^"]*…/g, '"[^"]+'));
}

async function runBlock(run, block, home, logged) {
  const where = `${run.name}:${block.line}`;
  if (block.language === 'toml') {
    const file = /^# (\S+\.toml)$/m.exec(block.text)?.[1];
    assert.ok(file, `${where}: the first line names the file`);
    writeFileSync(join(home, file), withPort(block.text));
  } else if (block.language === 'js') {
    await runInPage(run, block, logged);
  } else if (block.language === 'sh') {
    const all = commands(block);
    // A block that starts a server does so on a fresh system.
    if (all.some(({ text }) => SERVES.test(text) && !NOT_RUN.some(([pattern]) => pattern.test(text)))) {
      await stopServers(run);
      for (const own of OWN ? [join(OWN, 'var-lib'), join(OWN, 'mnt')] : []) {
        for (const path of readdirSync(own)) rmSync(join(own, path), { recursive: true });
      }
    }
    for (const command of all) await runCommand(run, command);
  }
}

async function runCommand(run, { text, line }) {
  const where = `${run.name}:${line}: ${text}`;
  const matches = ([pattern]) => pattern.test(text);
  const reason = NOT_RUN.find(matches)?.[1];
  if (reason) {
    console.log(`not run: ${where} (${reason})`);
    return;
  }
  const complete = LEFT_OUT.reduce((typed, [part]) => typed.replace(part, ''), text);
  const typed = withPort(complete);
  if (SERVES.test(text)) await stopServers(run);
  if (CONTINUES.some((pattern) => pattern.test(typed))) {
    const started = await run.shell.start(typed);
    run.continuing.push({ ...started, text });
    if (SERVES.test(text)) await until(`${where} serves`, () => fetch(`${URL_OF_SERVER}/readyz`).then((response) => response.ok, () => false));
    run.done.push({ ...started, text });
    return;
  }
  const allowed = [0, ...(OTHER_CODES.find(matches)?.[1] ?? [])];
  let ended;
  const succeeds = async () => {
    ended = await run.shell.run(typed);
    return allowed.includes(ended.code);
  };
  if (FOLLOWS_ANOTHER.some((pattern) => pattern.test(text))) await until(where, succeeds).catch(() => {});
  else await succeeds();
  assert.ok(allowed.includes(ended.code), `${where}\nexit code ${ended.code}\n${ended.output()}`);
  run.done.push({ ...ended, text });
}

/** Stops the server, and all that would lose it; another one takes its place. */
async function stopServers(run) {
  for (const one of run.continuing.splice(0)) await one.stop();
  await run.server?.stop();
  run.server = undefined;
}

/** Runs a block in the console of a page of the server, and waits for the message that it logs. */
async function runInPage(run, block, logged) {
  await run.page.goto(URL_OF_SERVER);
  const before = logged.length;
  // A console takes `await` at the top, and what is declared stays.
  await run.page.evaluate(`(async () => { ${block.text}\n })()`);
  const publish = async () => {
    if (block.text.includes('fetch(')) return;
    const body = '{"text":"in a page"}';
    const stream = /stream[=/](\w+)/.exec(block.text)[1];
    const posted = await fetch(`${URL_OF_SERVER}/v1/stream/${stream}`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
    assert.ok(posted.ok, `${run.name}:${block.line}: ${posted.status}`);
  };
  // The page may not be subscribed yet when the first message is published.
  await until(`${run.name}:${block.line} logs a message`, async () => {
    if (logged.length === before) await publish();
    return logged.length > before;
  });
  assert.ok(!logged.some((text) => /error/i.test(text)), logged.join('\n'));
}

/** What is typed for a command, or written for a file. */
function withPort(text) {
  return OWN ? text : OTHER_PORTS.reduce((typed, [word, other]) => typed.replace(word, other), text);
}

/** The environment of a user: `encke` is a command, and no setting is given, but for addresses that may be taken. */
function environment(directory, home) {
  const given = Object.entries(process.env).filter(([name]) => !name.startsWith('ENCKE_'));
  const listen = OWN ? {} : { ENCKE_LISTEN: LISTEN, ENCKE_ADMIN_LISTEN: '127.0.0.1:0' };
  return { ...Object.fromEntries(given), ...listen, CURL_HOME: home, PATH: `${join(directory, 'bin')}:${process.env.PATH}` };
}

/** A directory that is removed at the end. */
function scratch() {
  const directory = mkdtempSync(join(OWN ? dirname(OWN) : tmpdir(), 'docs-commands-'));
  after(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}
