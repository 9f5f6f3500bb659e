// Clients and publishers of the Pusher protocol, for any server of it: memory of idle connections, fan-out, and publishes over the HTTP API.
//
// usage: KEY=… SECRET=… ID=… node pusher.mjs PORT PID [IDLE 9000] [SUBSCRIBERS 5000] [EVENTS PER SECOND 20] [SECONDS 10]
//
// An idle connection has a private channel of its own. Encke serves with --connections-per-address 0 --request-rate 0. Latencies include this process,
// which is one thread for all clients: compare them between servers only.

import crypto from 'node:crypto';
import http from 'node:http';
import { cpuTimes, hundreds, memoryMib, wait } from './process.mjs';
import { PusherConnection } from './pusher-connection.mjs';

const [port, pid, idle = 9_000, subscribers = 5_000, rate = 20, seconds = 10] = process.argv.slice(2).map(Number);
const { KEY = 'app-key', SECRET = 'a secret of at least 16 bytes', ID = '1' } = process.env;

const sign = (text) => crypto.createHmac('sha256', SECRET).update(text).digest('hex');
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
const deliveries = { count: 0, ms: [] };

/** A client that is subscribed to a private channel. */
function subscribe(channel) {
  return new Promise((resolve, reject) => {
    const connection = new PusherConnection({
      address: `127.0.0.1:${port}`,
      key: KEY,
      onMessage: ({ event, data }) => {
        if (event === 'pusher:connection_established') {
          const auth = `${KEY}:${sign(`${JSON.parse(data).socket_id}:${channel}`)}`;
          connection.send({ event: 'pusher:subscribe', data: { channel, auth } });
        } else if (event === 'pusher_internal:subscription_succeeded') {
          resolve(connection);
        } else if (event === 'e') {
          deliveries.count++;
          deliveries.ms.push(performance.now() - JSON.parse(data).sent);
        } else {
          reject(new Error(`${event} ${JSON.stringify(data)}`));
        }
      },
      onEnd: (code) => reject(new Error(`the connection has ended: ${code}`)),
    });
  });
}

/** An event by the HTTP API. */
function trigger(channel, data) {
  const body = JSON.stringify({ name: 'e', channel, data: JSON.stringify(data) });
  const md5 = crypto.createHash('md5').update(body).digest('hex');
  const path = `/apps/${ID}/events`;
  const query = `auth_key=${KEY}&auth_timestamp=${Math.floor(Date.now() / 1_000)}&auth_version=1.0&body_md5=${md5}`;
  const target = `${path}?${query}&auth_signature=${sign(`POST\n${path}\n${query}`)}`;
  const headers = { 'Content-Type': 'application/json', Host: 'localhost' };
  return new Promise((resolve, reject) => {
    const request = http.request({ port, host: '127.0.0.1', method: 'POST', path: target, agent, headers }, (answer) => {
      answer.resume();
      answer.on('end', () => (answer.statusCode === 200 ? resolve() : reject(new Error(`status ${answer.statusCode}`))));
    });
    request.on('error', reject);
    request.end(body);
  });
}

const before = memoryMib(pid).anonymous;
const clients = await hundreds(idle, (number) => subscribe(`private-u-${number}`));
await wait(8_000);
const held = memoryMib(pid).anonymous - before;
console.log(`${idle} idle connections with a private channel each: ${held.toFixed(1)} MiB, ${((held * 2 ** 20) / idle).toFixed(0)} B each`);
for (const client of clients) client.hangUp();
await wait(1_500);

const fans = await hundreds(subscribers, () => subscribe('private-room'));
await wait(1_000);
const [cpu, begin] = [cpuTimes(pid), performance.now()];
let sent = 0;
while (performance.now() - begin < seconds * 1_000) {
  for (const due = ((performance.now() - begin) / 1_000) * rate; sent < due; sent++) {
    trigger('private-room', { sent: performance.now() }).catch((error) => console.log(error.message));
  }
  await wait(2);
}
const wanted = sent * subscribers;
for (const end = performance.now() + 20_000; deliveries.count < wanted && performance.now() < end; ) await wait(20);
const { own, system } = cpuTimes(pid);
const each = (seconds) => `${((seconds * 1e6) / deliveries.count).toFixed(2)} µs`;
const sorted = deliveries.ms.sort((one, other) => one - other);
const at = (share) => sorted[Math.floor(sorted.length * share)]?.toFixed(1);
console.log(`${subscribers} subscribers, ${rate} events/s: ${deliveries.count} of ${wanted} deliveries, processor time ${each(own - cpu.own + system - cpu.system)} each, of which the server's own ${each(own - cpu.own)}; p50 ${at(0.5)} ms, p99 ${at(0.99)} ms`);
for (const fan of fans) fan.hangUp();
await wait(500);

const publishing = performance.now() + 5_000;
let published = 0;
const publisher = async () => {
  for (; performance.now() < publishing; published++) await trigger('bench', { n: 1 });
};
await Promise.all(Array.from({ length: 64 }, publisher));
console.log(`publishes over 64 connections: ${(published / 5).toFixed(0)}/s`);
process.exit(0);
