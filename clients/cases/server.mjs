// The scripted server of the cases. Each play of a case has ports of its own, a model of the server behind them, and the faults of the case
// in place of the first responses. Other languages run this file and speak lines of JSON with it (`serve` below).

import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { createSecureContext, TLSSocket } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { selfSigned } from '../../tests/web/certificate.mjs';
import { casesOf, failuresOf } from './cases.mjs';
import { Model } from './model.mjs';

/** How long a response stands still where a case divides it, so that its parts come in different reads. */
const PAUSE_MS = 10;
/** The second numbers of the addresses of plays: processes at the same time have different ones. */
const FIRST_NETWORK = 64;
const NETWORKS = 128;
const HANDSHAKE_GUID = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11';
const TLS_HANDSHAKE = 0x16;

let secureContext;
const secure = () => (secureContext ??= makeContext());

function makeContext() {
  const folder = mkdtempSync(join(tmpdir(), 'encke-cases-'));
  const { cert, key } = selfSigned(folder);
  const context = createSecureContext({ cert: readFileSync(cert), key: readFileSync(key) });
  rmSync(folder, { recursive: true });
  return context;
}

/** A case that is played once. `position` is where a response is cut or divided, if the case does that at every byte. */
export class Play {
  static #count = 0;
  /** An address of its own on loopback: a client of another play or test may still connect to a port that it knew. */
  #host = `127.${FIRST_NETWORK + (process.pid % NETWORKS)}.${(Play.#count >> 8) & 255}.${Play.#count++ & 255}`;
  #case;
  #position;
  #faults;
  #servers = [];
  #sockets = new Set();
  #model = new Model();
  #ids = new Map();
  /** The requests and messages that have arrived: at the origin, and elsewhere. */
  seen = [];
  elsewhere = [];
  /** The bytes of the response that has a position. */
  length = 0;

  static async start(played, position = Infinity) {
    const play = new Play();
    play.#case = played;
    play.#position = position;
    play.#faults = structuredClone(played.answers ?? []);
    const { records = [], closed = false } = played.stream ?? {};
    Object.assign(play.#model.stream('s'), { records: [...records], closed });
    play.origin = await play.#listen((request) => play.#arrived(request));
    play.other = await play.#listen((request) => play.elsewhere.push(request.headers.authorization ?? ''));
    return play;
  }

  recreate() {
    this.#model.recreate('s');
  }

  /** The differences from the expectation, after the calls of the client have settled with `results`. */
  failures(results, client) {
    const stored = this.#model.stream('s').records;
    const ids = Math.max(0, ...[...this.#ids.values()].map((set) => set.size));
    const { jobs } = this.#model;
    return failuresOf(this.#case, client, { results, stored, jobs: jobs.length, seen: this.seen, elsewhere: this.elsewhere, ids });
  }

  stop() {
    for (const socket of this.#sockets) socket.destroy();
    for (const server of this.#servers) server.close();
  }

  async #listen(arrived) {
    const server = createServer((socket) => {
      this.#sockets.add(socket.setNoDelay());
      socket.once('close', () => this.#sockets.delete(socket));
      socket.on('error', () => {});
      socket.once('readable', () => {
        const first = socket.read();
        if (!first) return;
        socket.unshift(first);
        const isTls = first[0] === TLS_HANDSHAKE;
        const plain = isTls ? new TLSSocket(socket, { isServer: true, secureContext: secure() }) : socket;
        plain.on('error', () => {});
        new Connection(plain, arrived, this);
      });
    });
    await once(server.listen(0, this.#host), 'listening');
    this.#servers.push(server);
    return `http://${this.#host}:${server.address().port}`;
  }

  /** The next response, as the case has it. */
  #arrived(request) {
    const { method, url, headers } = request;
    const id = headers['producer-id'];
    if (id) this.#number(url, id);
    const number = id ? ` ${headers['producer-epoch']}/${headers['producer-seq']}` : '';
    const isJoin = headers.upgrade === 'websocket';
    this.seen.push(isJoin ? 'WS' : `${method} ${new URL(url, this.origin).pathname.replace(/^\/v1\//, '')}${number}`);
    const fault = this.#case.always ?? this.#faults.shift() ?? {};
    const { status, location, headers: fields = {}, without = [], body } = fault;
    if (isJoin && fault.status === undefined) return { ...fault, isJoin, position: this.#positionOf(fault) };
    // The request does not reach the server, and its connection is cut.
    if (fault.lost) return { status: 502, position: 0 };
    const isModel = status === undefined && !location;
    const reply = isModel ? this.#model.respond(request, this.#case.newline) : { status, body };
    const all = { ...reply.headers, ...fields };
    if (location) all.Location = this.#address(location).replace('{url}', url);
    for (const name of without) delete all[name];
    return { ...fault, ...reply, status: fault.status ?? reply.status, headers: all, body: body ?? reply.body, position: this.#positionOf(fault) };
  }

  #number(url, id) {
    if (!this.#ids.has(url)) this.#ids.set(url, new Set());
    this.#ids.get(url).add(id);
  }

  #positionOf({ at }) {
    return at === 'every' ? this.#position : (at ?? Infinity);
  }

  /** `{https}/a` is the path `/a` at the origin over TLS; `{url}` is the path and the query of the request. */
  #address(location) {
    return location.replace('{https}', this.origin.replace('http:', 'https:')).replace('{origin}', this.origin).replace('{other}', this.other);
  }

  /** The messages that answer one of a WebSocket. */
  message(message) {
    const { producer, stream } = message;
    this.seen.push(`${message.type}${producer ? ` ${producer.epoch}/${producer.seq}` : ''}`);
    if (producer) this.#number(stream, producer.id);
    return this.#model.message(message);
  }
}

/** A connection of a client: reads its requests and messages, and writes responses up to a position. */
class Connection {
  #socket;
  #play;
  #input = Buffer.alloc(0);
  #work = Promise.resolve();
  #fault;
  /** Bytes of this response, or of all messages of a WebSocket. */
  #written = 0;

  constructor(socket, arrived, play) {
    this.#socket = socket;
    this.#play = play;
    socket.on('data', (data) => {
      this.#input = Buffer.concat([this.#input, data]);
      if (this.#fault?.isJoin) return this.#readFrames();
      for (let request; !this.#fault?.isJoin && (request = this.#request()); ) {
        const reply = arrived(request) ?? {};
        if (reply.isJoin) {
          this.#fault = reply;
          this.#join(request);
          this.#readFrames();
        } else {
          this.#work = this.#work.then(() => this.#reply(reply, request.method)).catch(() => {});
        }
      }
    });
  }

  /** The next whole request, if it is there. */
  #request() {
    const end = this.#input.indexOf('\r\n\r\n');
    if (end < 0) return undefined;
    const [first, ...lines] = this.#input.subarray(0, end).toString('latin1').split('\r\n');
    const headers = Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 1).trim()]));
    if (headers['transfer-encoding']) throw new Error('the scripted server reads bodies with a Content-Length only');
    const after = end + 4 + Number(headers['content-length'] ?? 0);
    if (this.#input.length < after) return undefined;
    const body = this.#input.subarray(end + 4, after).toString();
    this.#input = this.#input.subarray(after);
    const [method, url] = first.split(' ');
    return { method, url, headers, body };
  }

  async #reply(reply, method) {
    const { status, headers = {}, body = '', never, twice, delayMs, isLive, isEnd } = reply;
    if (never || status === undefined) return;
    if (delayMs) await sleep(delayMs);
    const hasBody = method !== 'HEAD' && status !== 204;
    const framing = isLive ? { 'Transfer-Encoding': 'chunked' } : status === 204 ? {} : { 'Content-Length': Buffer.byteLength(body) };
    const fields = Object.entries({ ...framing, ...headers }).map(([name, value]) => `${name}: ${value}\r\n`);
    const chunk = isLive && body ? `${Buffer.byteLength(body).toString(16)}\r\n${body}\r\n` : body;
    const text = `HTTP/1.1 ${status} X\r\n${fields.join('')}\r\n${hasBody ? chunk : ''}${hasBody && isLive && isEnd ? '0\r\n\r\n' : ''}`;
    this.#written = 0;
    await this.#write(Buffer.from(twice ? text + text : text), reply);
  }

  /** Writes up to the position. The bytes behind it are lost with the connection, or come after a pause. */
  async #write(bytes, { position, pauses, at }) {
    const left = position - this.#written;
    this.#written += bytes.length;
    if (at !== undefined) this.#play.length = Math.max(this.#play.length, this.#written);
    if (left < 0 || left >= bytes.length) return void (left >= 0 && this.#socket.write(bytes));
    if (left) this.#socket.write(bytes.subarray(0, left));
    if (!pauses) return void this.#socket.end().destroySoon();
    await sleep(PAUSE_MS);
    this.#socket.write(bytes.subarray(left));
  }

  #join({ headers }) {
    const accept = createHash('sha1').update(headers['sec-websocket-key'] + HANDSHAKE_GUID).digest('base64');
    const fields = ['Upgrade: websocket', 'Connection: Upgrade', `Sec-WebSocket-Accept: ${accept}`, 'Sec-WebSocket-Protocol: encke.v1'];
    void this.#write(Buffer.from(`HTTP/1.1 101 X\r\n${fields.map((field) => `${field}\r\n`).join('')}\r\n`), this.#fault);
    const { texts = [], close } = this.#fault;
    for (const text of texts) this.#send(1, Buffer.from(text));
    if (close !== undefined) this.#send(8, Buffer.from([close >> 8, close & 255]));
  }

  #send(opcode, payload) {
    const length = payload.length < 126 ? [payload.length] : [126, payload.length >> 8, payload.length & 255];
    void this.#write(Buffer.concat([Buffer.from([0x80 | opcode, ...length]), payload]), this.#fault);
  }

  #readFrames() {
    for (;;) {
      if (this.#input.length < 6) return;
      const short = this.#input[1] & 127;
      const begin = short === 126 ? 4 : 2;
      const length = short === 126 ? this.#input.readUInt16BE(2) : short;
      if (this.#input.length < begin + 4 + length) return;
      const mask = this.#input.subarray(begin, begin + 4);
      const payload = this.#input.subarray(begin + 4, begin + 4 + length).map((byte, index) => byte ^ mask[index % 4]);
      const opcode = this.#input[0] & 15;
      this.#input = this.#input.subarray(begin + 4 + length);
      if (opcode === 8) return void this.#socket.end();
      if (opcode !== 1) continue;
      const replies = this.#play.message(JSON.parse(Buffer.from(payload).toString()));
      if (!this.#fault.never) for (const reply of replies) this.#send(1, Buffer.from(JSON.stringify(reply)));
    }
  }
}

/**
 * Plays cases for another process. Each line of the input has an `id` and `do`, and gets a line with its `id`: `cases` returns the cases of the
 * client that the command line names; `play` begins the case at `index`; `recreate` and `end` belong to a `play`.
 */
async function serve() {
  const all = casesOf(process.argv[2]);
  const plays = new Map();
  for await (const line of createInterface({ input: process.stdin })) {
    const { id, do: what, index, position, play: number, results } = JSON.parse(line);
    let reply = {};
    if (what === 'cases') reply = { cases: all };
    if (what === 'play') {
      const play = await Play.start(all[index], position ?? Infinity);
      plays.set(id, play);
      reply = { play: id, origin: play.origin };
    }
    if (what === 'recreate') plays.get(number).recreate();
    if (what === 'end') {
      const play = plays.get(number);
      play.stop();
      plays.delete(number);
      reply = { failures: play.failures(results, process.argv[2]), length: play.length };
    }
    console.log(JSON.stringify({ id, ...reply }));
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await serve();
