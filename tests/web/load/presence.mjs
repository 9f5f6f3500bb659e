// Members of one stream that come and go, and a follower that must know exactly who is there.
//
// usage: node presence.mjs PORT PID [MEMBERS 10000] [CHANGES PER SECOND 1000] [SECONDS 20]
//
// The server has an entry of [[presence.streams]] for chat/**, and serves with --connections-per-address 0 --request-rate 0. A change is the end of
// the oldest member's connection and a new member.

import { cpuSeconds, hundreds, memoryMib, wait } from './process.mjs';
import { Sightings } from './returning-client.mjs';
import { StreamFollower, StreamMember } from './stream-members.mjs';

const STREAM = 'chat/1';
const [port, pid, members = 10_000, rate = 1_000, seconds = 20] = process.argv.slice(2).map(Number);
const address = `127.0.0.1:${port}`;
const URL = `http://${address}`;
const sightings = new Sightings();
const options = { stream: STREAM, choose: () => address, sightings };

/** The members, by their numbers. */
const held = new Map();
let next = 0;

/** A new member. */
async function enter() {
  const number = next++;
  const member = new StreamMember({ user: `m${number}`, ...options });
  held.set(number, member);
  member.connect();
  while (!member.isConfirmed && !member.isGone) await wait(5);
}

/** Who is there, as the follower was told. */
const known = () => follower.rosters.get(STREAM) ?? new Set();
const same = (one, other) => one.size === other.size && [...one].every((id) => other.has(id));

await fetch(`${URL}/v1/stream/${STREAM}`, { method: 'PUT', headers: { 'Content-Type': 'application/json' } });
const follower = new StreamFollower({ user: 'follower', ...options });
follower.connect();
const before = memoryMib(pid);
await hundreds(members, enter);
await wait(1_000);
const after = memoryMib(pid);
console.log(`${members} members: ${before.resident.toFixed(0)} to ${after.resident.toFixed(0)} MiB resident; the follower knows ${known().size}`);

const [cpu, begin] = [cpuSeconds(pid), performance.now()];
let changes = 0;
while (performance.now() - begin < seconds * 1_000) {
  const entering = [];
  for (const due = ((performance.now() - begin) / 1_000) * rate; changes < due; changes++) {
    const [oldest] = held.keys();
    held.get(oldest).leave();
    held.delete(oldest);
    entering.push(enter());
  }
  await Promise.all(entering);
  await wait(5);
}
const took = (performance.now() - begin) / 1_000;
console.log(`${changes} leaves and as many joins in ${took.toFixed(1)} s: ${(cpuSeconds(pid) - cpu).toFixed(2)} s of processor time`);

await wait(1_500);
const { members: list } = await (await fetch(`${URL}/v1/presence/${STREAM}`)).json();
const [server, mine] = [new Set(list.map((member) => member.id)), new Set([...held.keys()].map((number) => `m${number}`))];
const ends = sightings.takeEnds();
const exact = same(server, mine) && same(known(), mine) && sightings.contradictionCount === 0 && ends === 'none';
console.log(`${exact ? 'exact' : 'WRONG'}: the server has ${server.size}, the follower ${known().size}, ${mine.size} are there; ${sightings.events} events, ${sightings.contradictionCount} wrong; connections lost or refused: ${ends}`);
process.exit(exact ? 0 : 1);
