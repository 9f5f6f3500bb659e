// Kills a server while members are connected, and measures how long it takes after the next start until its lists are exactly the members that came back.
//
// usage: ENCKE_BIN=… node presence-kill.mjs [--channels 900] [--members-per-channel 10] [--never-back-percent 5]
//
// Each member is a client of the Pusher protocol in a presence channel. Clients come back as pusher-js does, 1 to 2 s after their connection is lost, and
// again if the server does not listen yet. Times include this process, which is one thread for all clients. Exits with 1 if anything is wrong.

import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { PresenceClient } from './presence-client.mjs';
import { waitUntilExact } from './presence-oracle.mjs';
import { cpuSeconds, hundreds, memoryMib, wait } from './process.mjs';
import { PusherApp } from './pusher-app.mjs';
import { Sightings } from './returning-client.mjs';
import { endAfter, temporaryFolder } from './temporary-run.mjs';

/** How long the lists may be wrong after the last client is back. */
const EXACT_MS_MAX = 5_000;
/** How long a client may take to come for the first time. */
const CONFIRM_MS_MAX = 60_000;
const RUN_SECONDS_MAX = 240;

const { values } = parseArgs({
  options: {
    channels: { type: 'string', default: '900' },
    'members-per-channel': { type: 'string', default: '10' },
    'never-back-percent': { type: 'string', default: '5' },
  },
});
const [channelCount, perChannel, neverBackPercent] = Object.values(values).map(Number);

endAfter(RUN_SECONDS_MAX);
const folder = temporaryFolder();
const app = new PusherApp();
const configuration = join(folder, 'encke.toml');
writeFileSync(configuration, app.configuration({}), { mode: 0o600 });
const address = await fixedAddress();
const args = ['--config', configuration, '--connections-per-address', '0', '--request-rate', '0'];
const start = () => Encke.start({ data: join(folder, 'data'), listen: address, args });

const channels = Array.from({ length: channelCount }, (_, number) => `presence-room-${number}`);
const sightings = new Sightings();
let clients = Array.from({ length: channelCount * perChannel }, (_, number) => {
  const comesBack = number % 100 >= neverBackPercent;
  return new PresenceClient({
    app,
    user: `user-${number}`,
    // Every channel loses some members.
    channels: [channels[(number + Math.floor(number / channelCount)) % channelCount]],
    choose: () => address,
    delay: () => 1_000 + Math.random() * 1_000,
    comesBack: () => comesBack,
    sightings,
  });
});

let server = await start();
await hundreds(clients.length, async (number) => {
  clients[number].connect();
  for (const end = performance.now() + CONFIRM_MS_MAX; !clients[number].isConfirmed && performance.now() < end; ) await wait(5);
});
let result = await waitUntilExact({ directory: app, addresses: [address], channels, clients: () => clients, msMax: EXACT_MS_MAX });
console.log(`${clients.length} members in ${channels.length} channels: lists ${result.wrong ? `WRONG: ${result.wrong}` : 'exact'}; ${memoryMib(server.pid).resident.toFixed(0)} MiB resident`);
if (result.wrong) process.exit(1);
sightings.takeEnds();

const killed = performance.now();
await server.kill();
server = await start();
const ready = performance.now();
console.log(`killed, and ready again after ${(ready - killed).toFixed(0)} ms`);

clients = clients.filter((_, number) => number % 100 >= neverBackPercent);
result = await waitUntilExact({ directory: app, addresses: [address], channels, clients: () => clients, msMax: EXACT_MS_MAX });
const ms = (time) => (time === undefined ? 'never' : `${time.toFixed(0)} ms`);
const isRight = result.wrong === undefined && sightings.contradictionCount === 0;
console.log(`after the readiness: all ${clients.length} clients are back after ${ms(result.times.confirmed)}, know exactly the members after ${ms(result.times.clients)}, and all ${channels.length} lists are exact after ${ms(result.times.servers)}; connections lost or refused: ${sightings.takeEnds()}`);
console.log(`${cpuSeconds(server.pid).toFixed(2)} s of processor time of the server since its start, ${memoryMib(server.pid).resident.toFixed(0)} MiB resident; ${sightings.events} changes reached clients, ${sightings.contradictionCount} contradict what a client knew; ${app.unanswered} requests for lists without an answer`);
for (const contradiction of sightings.contradictions) console.log(contradiction);
console.log(isRight ? 'exact' : `WRONG: ${result.wrong ?? 'contradictions'}`);
for (const client of clients) client.leave();
await server.stop();
process.exit(isRight ? 0 : 1);
