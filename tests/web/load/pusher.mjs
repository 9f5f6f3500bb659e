// Clients and publishers of the Pusher protocol, for any server of it: memory of idle connections, fan-out, and publishes over the HTTP API.
//
// usage: KEY=… SECRET=… ID=… node pusher.mjs PORT PID [IDLE 9000] [SUBSCRIBERS 5000] [EVENTS PER SECOND 20] [SECONDS 10]
//
// An idle connection has a private channel of its own. Encke serves with --connections-per-address 0 --request-rate 0. Latencies include this process,
// which is one thread for all clients: compare them between servers only.

import crypto from 'node:crypto';
import http from 'node:http';
import net from 'node:net';
import { cpuSeconds, hundreds, memoryMib, wait } from './process.mjs';

const [port, pid, idle = 9_000, subscribers = 5_000, rate = 20, seconds = 10] = process.argv.slice(2).map(Number);
const { KEY = 'app-key', SECRET = 'a secret of at least 16 bytes', ID = '1' } = process.env;

const sign = (text) => crypto.createHmac('sha256', SECRET).update(text).digest('hex');
const agent = new http.Agent({ keepAlive: true, maxSockets: 64 });
const deliveries = { count: 0, ms: [] };

/** A text message of a client, masked with zeros. */
function frame(text) {
  const payload = Buffer.from(text);
  const length = payload.length < 126 ? [0x80 | payload.length] : [0xfe, payload.length >> 8, payload.length & 255];
  return Buffer.concat([Buffer.from([0x81, ...length, 0, 0, 0, 0]), payload]);
}

/** A client that is subscribed to a private channel. */
function subscribe(number, channel) {
  const socket = net.connect({ port, host: '127.0.0.1', localAddress: `127.0.${1 + (number % 8)}.1` });
  const upgrade = 'Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13';
  socket.write(`GET /app/${KEY}?protocol=7 HTTP/1.1\r\nHost: localhost\r\n${upgrade}\r\n\r\n`);
  let input = Buffer.alloc(0);
  let isOpen = false;
  return new Promise((resolve, reject) => {
    const take = (payload) => {
      const { event, data } = JSON.parse(payload);
      if (event === 'pusher:connection_established') {
        const auth = `${KEY}:${sign(`${JSON.parse(data).socket_id}:${channel}`)}`;
        socket.write(frame(JSON.stringify({ event: 'pusher:subscribe', data: { channel, auth } })));
      } else if (event === 'pusher_internal:subscription_succeeded') {
        resolve(socket);
      } else if (event === 'e') {
        deliveries.count++;
        deliveries.ms.push(performance.now() - JSON.parse(data).sent);
      } else {
        reject(new Error(String(payload)));
      }
    };
    socket.on('error', reject);
    socket.on('data', (part) => {
      input = input.length === 0 ? part : Buffer.concat([input, part]);
      if (!isOpen) {
        const end = input.indexOf('\r\n\r\n');
        if (end < 0) return;
        if (!String(input).startsWith('HTTP/1.1 101')) return reject(new Error(String(input)));
        input = input.subarray(end + 4);
        isOpen = true;
      }
      while (input.length >= 2) {
        const isLong = (input[1] & 127) === 126;
        if (isLong && input.length < 4) return;
        const [begin, length] = isLong ? [4, input.readUInt16BE(2)] : [2, input[1] & 127];
        if (input.length < begin + length) return;
        const [kind, payload] = [input[0] & 15, input.subarray(begin, begin + length)];
        input = input.subarray(begin + length);
        if (kind === 1) take(payload);
        if (kind === 9) socket.write(Buffer.concat([Buffer.from([0x8a, 0x80 | length, 0, 0, 0, 0]), payload]));
      }
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
const clients = await hundreds(idle, (number) => subscribe(number, `private-u-${number}`));
await wait(8_000);
const held = memoryMib(pid).anonymous - before;
console.log(`${idle} idle connections with a private channel each: ${held.toFixed(1)} MiB, ${((held * 2 ** 20) / idle).toFixed(0)} B each`);
for (const client of clients) client.destroy();
await wait(1_500);

const fans = await hundreds(subscribers, (number) => subscribe(number, 'private-room'));
await wait(1_000);
const [cpu, begin] = [cpuSeconds(pid), performance.now()];
let sent = 0;
while (performance.now() - begin < seconds * 1_000) {
  for (const due = ((performance.now() - begin) / 1_000) * rate; sent < due; sent++) {
    trigger('private-room', { sent: performance.now() }).catch((error) => console.log(error.message));
  }
  await wait(2);
}
const wanted = sent * subscribers;
for (const end = performance.now() + 20_000; deliveries.count < wanted && performance.now() < end; ) await wait(20);
const used = cpuSeconds(pid) - cpu;
const sorted = deliveries.ms.sort((one, other) => one - other);
const at = (share) => sorted[Math.floor(sorted.length * share)]?.toFixed(1);
console.log(`${subscribers} subscribers, ${rate} events/s: ${deliveries.count} of ${wanted} deliveries, ${used.toFixed(2)} s of processor time, ${((used * 1e6) / deliveries.count).toFixed(2)} µs each; p50 ${at(0.5)} ms, p99 ${at(0.99)} ms`);
for (const fan of fans) fan.destroy();
await wait(500);

const publishing = performance.now() + 5_000;
let published = 0;
const publisher = async () => {
  for (; performance.now() < publishing; published++) await trigger('bench', { n: 1 });
};
await Promise.all(Array.from({ length: 64 }, publisher));
console.log(`publishes over 64 connections: ${(published / 5).toFixed(0)}/s`);
process.exit(0);
