// Makes nodes and the broker of a fleet fail while members join and leave, and measures how long it takes until all nodes and clients know exactly the members.
//
// usage: ENCKE_BIN=… NATS_SERVER=… node presence-faults.mjs [--members 10000] [--channels 250] [--rate 300] [--pause 8]
//
// It starts a broker and three nodes. Each member is a client of the Pusher protocol in a presence channel; every tenth has a second connection to
// another node. Every client replays what it hears of the members of its channel, and at each node one client does so for all channels. A change is the end
// of the oldest member's connections and a new member; `--rate` is the number of changes per second. They go on during a fault, and pause while the tool compares what nodes and
// clients know. A client of a node that ends comes back as pusher-js does, to another node; 5 % of them do not come back. `--pause`: for how many
// seconds a node or the broker is stopped.
//
// Times include this process, which is one thread for all clients. Exits with 1 if anything is wrong.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Encke } from '../encke.mjs';
import { Broker, nodeArgs } from '../fleet.mjs';
import { fixedAddress } from '../ports.mjs';
import { Population } from './population.mjs';
import { waitUntilExact } from './presence-oracle.mjs';
import { cpuSeconds, memoryMib, wait } from './process.mjs';
import { PusherApp } from './pusher-app.mjs';
import { endAfter, temporaryFolder } from './temporary-run.mjs';

/** How long nodes and clients may know other members than those who are there, while nothing changes and all clients are confirmed. */
const EXACT_MS_MAX = 10_000;
/** How long changes go on before a fault, and behind the return of a node. */
const CHANGES_MS = 3_000;
const HEALTH_EVERY_MS = 500;
const RUN_SECONDS_MAX = 420;
const NODES = ['a', 'b', 'c'];

const { values } = parseArgs({
  options: {
    members: { type: 'string', default: '10000' },
    channels: { type: 'string', default: '250' },
    rate: { type: 'string', default: '300' },
    pause: { type: 'string', default: '8' },
  },
});
const [memberCount, channelCount, rate, pauseSeconds] = Object.values(values).map(Number);

endAfter(RUN_SECONDS_MAX);
const folder = temporaryFolder();
const app = new PusherApp();
const configuration = join(folder, 'encke.toml');
writeFileSync(configuration, app.configuration({ 'channels-per-connection-max': channelCount }), { mode: 0o600 });
const channels = Array.from({ length: channelCount }, (_, number) => `presence-room-${number}`);

const broker = await Broker.start(join(folder, 'broker'));
const nodes = [];
for (const name of NODES) {
  const node = { name, address: await fixedAddress(), isRunning: false, isReady: false };
  nodes.push(node);
  await start(node);
}

async function start(node) {
  const args = ['--config', configuration, '--connections-per-address', '0', '--request-rate', '0'];
  node.server = await Encke.start({ data: join(folder, node.name), listen: node.address, args: [...nodeArgs(broker, node.name), ...args] });
  node.isRunning = node.isReady = true;
}

/** Notes whether a node is ready, as a load balancer does. */
async function watch(node) {
  for (;;) {
    await wait(HEALTH_EVERY_MS);
    node.isReady = node.isRunning && (await app.isReady(node.address));
  }
}

let turn = 0;
/** The address of the next node that is ready, other than the one given. */
function choose(other) {
  const ready = nodes.filter((node) => node.isReady && node.address !== other);
  return (ready.length === 0 ? nodes : ready)[turn++ % (ready.length || nodes.length)].address;
}

const population = new Population({ app, channels, choose });
const { sightings } = population;

let isRight = true;

/** Pauses the changes until all is exact, and prints how long that took. */
async function compare(what, began) {
  population.pause();
  const paused = performance.now();
  const running = nodes.filter((node) => node.isRunning);
  const addresses = running.map((node) => node.address);
  const { times, wrong } = await waitUntilExact({ app, addresses, channels, clients: () => population.clients, msMax: EXACT_MS_MAX });
  const ms = (time) => (time === undefined ? 'never' : `${time.toFixed(0)} ms`);
  console.log(`${what}: ${population.members} members, ${population.clients.length} clients; connections lost or refused: ${sightings.takeEnds()}`);
  console.log(`  changes paused ${ms(paused - began)} after it began; from then on clients confirmed ${ms(times.confirmed)}, clients exact ${ms(times.clients)}, ${running.length} nodes exact ${ms(times.servers)}`);
  if (wrong) console.log(`  WRONG: ${wrong}`);
  isRight &&= wrong === undefined;
  population.resume(rate, memberCount);
}

/** Ends a node and starts it again. Changes go on before, while it is away, and behind its return. */
async function endAndStart(what, node, end) {
  await wait(CHANGES_MS);
  const began = performance.now();
  population.loses(node.address);
  await end();
  node.isRunning = node.isReady = false;
  population.unfollow(node.address);
  await compare(`${what}, while it is away`, began);
  await wait(CHANGES_MS);
  const starts = performance.now();
  await start(node);
  const ready = performance.now() - starts;
  population.loses(undefined);
  population.follow(node.address);
  await wait(CHANGES_MS);
  await compare(`${what}, started again, ready after ${ready.toFixed(0)} ms`, starts);
}

/** Stops a process and continues it. Changes go on meanwhile. */
async function stopAndContinue(what, pid) {
  await wait(CHANGES_MS);
  const began = performance.now();
  process.kill(pid, 'SIGSTOP');
  await wait(pauseSeconds * 1_000);
  process.kill(pid, 'SIGCONT');
  await compare(`${what} stopped for ${pauseSeconds} s`, began);
}

for (const node of nodes) void watch(node);
for (const node of nodes) population.follow(node.address);
const entering = performance.now();
await population.enter(memberCount);
console.log(`${population.members} members have come within ${((performance.now() - entering) / 1_000).toFixed(1)} s`);
await compare('before the faults', performance.now());

const begin = performance.now();
const [a, b, c] = nodes;
await endAndStart(`kill -9 of node ${a.name}`, a, () => a.server.kill());
await stopAndContinue(`node ${b.name}`, b.server.pid);
await stopAndContinue('the broker', broker.pid);
await endAndStart(`SIGTERM to node ${c.name}`, c, () => c.server.stop());
population.pause();
const seconds = (performance.now() - begin) / 1_000;

isRight &&= sightings.contradictionCount === 0;
console.log(`${population.changes} changes in ${seconds.toFixed(0)} s, comparisons included; ${sightings.events} changes of members reached clients, ${sightings.contradictionCount} contradict what a client knew; ${app.unanswered} requests for lists without an answer`);
for (const contradiction of sightings.contradictions) console.log(contradiction);
for (const { name, server } of nodes) console.log(`node ${name}: ${cpuSeconds(server.pid).toFixed(1)} s of processor time since its start, ${memoryMib(server.pid).resident.toFixed(0)} MiB resident`);
console.log(isRight ? 'exact' : 'WRONG');
population.leave();
await Promise.all(nodes.map((node) => node.server.stop()));
await broker.kill();
process.exit(isRight ? 0 : 1);
