// What the page for operators costs the server: processor time per second with 1,000 streams and 10,000 subscribers, while no page is open
// and while one is, in each section. `node tests/web/bench/operator-page.mjs [SECONDS]`, with the release build.

import { readFileSync, readdirSync } from 'node:fs';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { launchChromium } from '../browser/chromium.mjs';
import { must, openPage, startGuarded } from '../browser/operator-page.mjs';
import { waitFor } from '../wait.mjs';

const STREAMS = 1_000;
const SUBSCRIBERS = 10_000;
const SECONDS = Number(process.argv[2] ?? 60);
/** Connections that are opened at a time. */
const AT_ONCE = 200;

const SECTIONS = ['server', 'connections', 'connections?by=stream', 'streams', 'streams?sort=bytes', 'streams?name=stream%2F7', 'access', 'machine'];

const server = await startGuarded();
const { encke } = server;
const { hostname, port } = new URL(encke.url);
const json = { 'Content-Type': 'application/json' };
for (let number = 0; number < STREAMS; number++) {
  await must('PUT', `${encke.url}/v1/stream/stream/${number}`, { headers: json });
  await must('POST', `${encke.url}/v1/stream/stream/${number}`, { json: { number } });
}
const sockets = [];
while (sockets.length < SUBSCRIBERS) {
  const opened = Array.from({ length: AT_ONCE }, (_, place) => subscribe(sockets.length + place));
  sockets.push(...(await Promise.all(opened)));
}
await waitFor('all are subscribed', async () => (await encke.metric('encke_subscribers')) === SUBSCRIBERS);

const browser = await launchChromium();
console.log(`${STREAMS} streams, ${SUBSCRIBERS} subscribers, ${SECONDS} s each, share of a core`);
await measure('no page');
for (const section of SECTIONS) {
  const { page } = await openPage(browser, encke.operators, section);
  await measure(`page at ${section}`);
  await page.context().close();
}
await measure('no page again');
await browser.close();
for (const socket of sockets) socket.destroy();
await server.stop();

/** Resolves when the head of the response is there. */
function subscribe(number) {
  return new Promise((resolve, reject) => {
    const socket = net.connect(Number(port), hostname, () => {
      socket.write(`GET /v1/stream/stream/${number % STREAMS}?offset=now&live=sse HTTP/1.1\r\nHost: ${hostname}:${port}\r\n\r\n`);
    });
    socket.once('error', reject);
    socket.once('data', () => {
      socket.resume();
      resolve(socket);
    });
  });
}

async function measure(what) {
  await sleep(3_000);
  const [begun, before] = [performance.now(), threads()];
  await sleep(SECONDS * 1000);
  const [seconds, now] = [(performance.now() - begun) / 1000, threads()];
  const share = (name) => (100 * ((now.get(name) ?? 0) - (before.get(name) ?? 0))) / seconds;
  const all = [...now.keys()].map(share).reduce((sum, one) => sum + one, 0);
  console.log(`${what.padEnd(34)} ${all.toFixed(3)} %, of which the thread inspector ${share('inspector').toFixed(3)} %`);
}

/** Seconds of processor time of the server's threads, by name, by the scheduler's clock of nanoseconds. */
function threads() {
  const folder = `/proc/${encke.pid}/task`;
  const found = new Map();
  for (const task of readdirSync(folder)) {
    const name = readFileSync(`${folder}/${task}/comm`, 'utf8').trim().replace(/-\d+$/, '');
    const [ns] = readFileSync(`${folder}/${task}/schedstat`, 'utf8').split(' ');
    found.set(name, (found.get(name) ?? 0) + Number(ns) / 1e9);
  }
  return found;
}
