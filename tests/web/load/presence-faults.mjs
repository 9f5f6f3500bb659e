// Makes nodes and the broker of a fleet fail while members join and leave, and measures how long it takes until all nodes and clients know exactly the members.
//
// usage: ENCKE_BIN=… NATS_SERVER=… node presence-faults.mjs [--members 10000] [--channels 250] [--rate 300] [--pause 8]
//        ENCKE_BIN=… NATS_SERVER=… node presence-faults.mjs --one-stream [--members 10000] [--rate 1000] [--pause 8]
//
// It starts a broker and three nodes. Each member is a client of the Pusher protocol in a presence channel, which replays what it hears of the members of its
// channel; at each node one client does so for all channels. With `--one-stream` all are members of one stream by server-sent events, and only one client at each
// node follows them, because otherwise each change goes to all. Every tenth member has a second connection to another node. A change is the end of the
// oldest member's connections and a new member; `--rate` is the number of changes per second. They go on during a fault, and pause while the tool compares
// what nodes and clients know. A client of a node that ends comes back as pusher-js does, to another node; 5 % of them do not come back. `--pause`: for
// how many seconds a node or the broker is stopped, and a node is cut off from the broker.
//
// Times include this process, which is one thread for all clients. Exits with 1 if anything is wrong.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { FaultyFleet } from './faulty-fleet.mjs';
import { Population } from './population.mjs';
import { PresenceClient } from './presence-client.mjs';
import { waitUntilExact } from './presence-oracle.mjs';
import { cpuSeconds, memoryMib, wait } from './process.mjs';
import { PusherApp } from './pusher-app.mjs';
import { StreamDirectory, StreamFollower, StreamMember } from './stream-members.mjs';
import { endAfter, temporaryFolder } from './temporary-run.mjs';

/** How long nodes and clients may know other members than those who are there, while nothing changes and all clients are confirmed. */
const EXACT_MS_MAX = 10_000;
/** How long changes go on before a fault, and behind the return of a node. */
const CHANGES_MS = 3_000;
const RUN_SECONDS_MAX = 420;
const STREAM = 'rooms/1';

const { values } = parseArgs({
  options: {
    members: { type: 'string', default: '10000' },
    channels: { type: 'string', default: '250' },
    'one-stream': { type: 'boolean', default: false },
    rate: { type: 'string' },
    pause: { type: 'string', default: '8' },
  },
});
const isOneStream = values['one-stream'];
const [memberCount, channelCount, pauseSeconds] = [values.members, values.channels, values.pause].map(Number);
const rate = Number(values.rate ?? (isOneStream ? 1_000 : 300));

endAfter(RUN_SECONDS_MAX);
const folder = temporaryFolder();
const { configuration, channels, directory, member, follower } = isOneStream ? oneStream() : presenceChannels();
const file = join(folder, 'encke.toml');
writeFileSync(file, configuration, { mode: 0o600 });
const fleet = await FaultyFleet.start({ folder, args: ['--config', file, '--connections-per-address', '0', '--request-rate', '0'] });
const population = new Population({ member, follower, choose: (other) => fleet.choose(other) });
const { sightings } = population;

function presenceChannels() {
  const app = new PusherApp();
  const channels = Array.from({ length: channelCount }, (_, number) => `presence-room-${number}`);
  return {
    configuration: app.configuration({ 'channels-per-connection-max': channelCount }),
    channels,
    directory: app,
    member: (number, options) => new PresenceClient({ app, channels: [channels[number % channelCount]], ...options }),
    follower: (options) => new PresenceClient({ app, channels, ...options }),
  };
}

function oneStream() {
  return {
    configuration: `[[presence.streams]]\nnames = "${STREAM}"\nmembers-max = ${2 * memberCount}\n`,
    channels: [STREAM],
    directory: new StreamDirectory(),
    member: (_, options) => new StreamMember({ stream: STREAM, ...options }),
    follower: (options) => new StreamFollower({ stream: STREAM, ...options }),
  };
}

let isRight = true;

/** Pauses the changes until all is exact, and prints how long that took. */
async function compare(what, began) {
  population.pause();
  const paused = performance.now();
  const addresses = fleet.running.map((node) => node.address);
  const { times, wrong } = await waitUntilExact({ directory, addresses, channels, clients: () => population.clients, msMax: EXACT_MS_MAX });
  const ms = (time) => (time === undefined ? 'never' : `${time.toFixed(0)} ms`);
  console.log(`${what}: ${population.members} members, ${population.clients.length} clients; connections lost or refused: ${sightings.takeEnds()}`);
  console.log(`  changes paused ${ms(paused - began)} after it began; from then on clients confirmed ${ms(times.confirmed)}, clients exact ${ms(times.clients)}, ${addresses.length} nodes exact ${ms(times.servers)}`);
  if (wrong) console.log(`  WRONG: ${wrong}`);
  isRight &&= wrong === undefined;
  population.resume(rate, memberCount);
}

/** Ends a node and starts it again. Changes go on before, while it is away, and behind its return. */
async function endAndStart(what, node, end) {
  await wait(CHANGES_MS);
  const began = performance.now();
  population.loses(node.address);
  await fleet.end(node, end);
  population.unfollow(node.address);
  await wait(CHANGES_MS);
  await compare(`${what}, while it is away`, began);
  await wait(CHANGES_MS);
  const starts = performance.now();
  await fleet.start(node);
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
  await compare(`${what} for ${pauseSeconds} s`, began);
}

if (isOneStream) await fetch(`http://${fleet.nodes[0].address}/v1/stream/${STREAM}`, { method: 'PUT', headers: { 'Content-Type': 'application/json' } });
for (const node of fleet.nodes) population.follow(node.address);
const entering = performance.now();
await population.enter(memberCount);
console.log(`${population.members} members have come within ${((performance.now() - entering) / 1_000).toFixed(1)} s`);
await compare('before the faults', performance.now());

const [a, b, c] = fleet.nodes;
await endAndStart(`kill -9 of node ${a.name}`, a, () => a.server.kill());
await stopAndContinue(`node ${b.name} stopped`, b.server.pid);
await stopAndContinue(`node ${b.name} cut off from the broker`, b.link.pid);
await stopAndContinue('the broker stopped', fleet.broker.pid);
await endAndStart(`SIGTERM to node ${c.name}`, c, () => c.server.stop());
population.pause();

isRight &&= sightings.contradictionCount === 0;
const seconds = population.changingMs / 1_000;
console.log(`${population.changes} leaves and as many joins in ${seconds.toFixed(0)} s: ${(population.changes / seconds).toFixed(0)} each per second`);
console.log(`${sightings.events} changes of members reached clients, ${sightings.contradictionCount} contradict what a client knew; ${directory.unanswered} requests for lists without an answer`);
for (const contradiction of sightings.contradictions) console.log(contradiction);
for (const { name, server } of fleet.nodes) console.log(`node ${name}: ${cpuSeconds(server.pid).toFixed(1)} s of processor time since its start, ${memoryMib(server.pid).resident.toFixed(0)} MiB resident`);
console.log(isRight ? 'exact' : 'WRONG');
population.leave();
await fleet.stop();
process.exit(isRight ? 0 : 1);
