// Members of one stream that come and go, and a follower that must know exactly who is there.
//
// usage: node presence.mjs PORT PID [MEMBERS 10000] [CHANGES PER SECOND 1000] [SECONDS 20]
//
// The server has an entry of [[presence.streams]] for chat/**, and serves with --connections-per-address 0 --request-rate 0. A change is the end of
// the oldest member's connection and a new member.

import net from 'node:net';
import { cpuSeconds, hundreds, memoryMib, wait } from './process.mjs';

const [port, pid, members = 10_000, rate = 1_000, seconds = 20] = process.argv.slice(2).map(Number);
const URL = `http://127.0.0.1:${port}`;

/** The connections, by the numbers of their members. */
const held = new Map();
let next = 0;

/** A new member. */
function enter() {
  const number = next++;
  const socket = net.connect({ port, host: '127.0.0.1', localAddress: `127.0.${1 + (number % 4)}.1` });
  socket.write(`GET /v1/stream/chat/1?offset=now&live=sse&member=m${number} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
  held.set(number, socket);
  return new Promise((resolve, reject) => {
    socket.on('error', reject);
    socket.once('data', (head) => {
      socket.on('data', () => {});
      return String(head).startsWith('HTTP/1.1 200') ? resolve() : reject(new Error(String(head)));
    });
  });
}

/** What the follower was told: who is there, and how much of it was wrong. */
const told = { present: new Set(), events: 0, wrong: 0 };
function follow() {
  const socket = net.connect({ port, host: '127.0.0.1' });
  socket.setEncoding('utf8');
  socket.write('GET /v1/presence/chat/1?live=sse HTTP/1.1\r\nHost: localhost\r\n\r\n');
  let rest = '';
  socket.on('data', (text) => {
    const blocks = (rest + text).split('\n\n');
    rest = blocks.pop();
    for (const block of blocks) {
      const data = /data:(.*)/.exec(block)?.[1];
      if (data) take(JSON.parse(data));
    }
  });
}

function take({ type, id, members: all }) {
  told.events++;
  if (type === 'members') told.present = new Set(all.map((member) => member.id));
  if (type === 'join') told.wrong += Number(told.present.has(id) || !told.present.add(id));
  if (type === 'leave') told.wrong += Number(!told.present.delete(id));
}

const same = (one, other) => one.size === other.size && [...one].every((id) => other.has(id));

await fetch(`${URL}/v1/stream/chat/1`, { method: 'PUT', headers: { 'Content-Type': 'application/json' } });
follow();
const before = memoryMib(pid);
await hundreds(members, enter);
await wait(1_000);
const after = memoryMib(pid);
console.log(`${members} members: ${before.resident.toFixed(0)} to ${after.resident.toFixed(0)} MiB resident; the follower knows ${told.present.size}`);

const [cpu, begin] = [cpuSeconds(pid), performance.now()];
let changes = 0;
while (performance.now() - begin < seconds * 1_000) {
  const entering = [];
  for (const due = ((performance.now() - begin) / 1_000) * rate; changes < due; changes++) {
    const [oldest] = held.keys();
    held.get(oldest).destroy();
    held.delete(oldest);
    entering.push(enter());
  }
  await Promise.all(entering);
  await wait(5);
}
const took = (performance.now() - begin) / 1_000;
console.log(`${changes} leaves and as many joins in ${took.toFixed(1)} s: ${(cpuSeconds(pid) - cpu).toFixed(2)} s of processor time`);

await wait(1_500);
const { members: list } = await (await fetch(`${URL}/v1/presence/chat/1`)).json();
const [server, mine] = [new Set(list.map((member) => member.id)), new Set([...held.keys()].map((number) => `m${number}`))];
const exact = same(server, mine) && same(told.present, mine) && told.wrong === 0;
console.log(`${exact ? 'exact' : 'WRONG'}: the server has ${server.size}, the follower ${told.present.size}, ${mine.size} are there; ${told.events} events, ${told.wrong} wrong`);
process.exit(exact ? 0 : 1);
