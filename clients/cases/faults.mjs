// The real server under faults, for the writers of a client: its process is killed, stopped and upgraded, or its connections are cut.
// Other languages run this file and speak lines of JSON with it (`serve` below).

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { create, read } from '../../tests/web/cuts.mjs';
import { BINARY, Encke } from '../../tests/web/encke.mjs';
import { fixedAddress } from '../../tests/web/ports.mjs';

const STREAM = 'load';
const ENDS = ['kill', 'stop', 'upgrade', 'kill', 'upgrade', 'stop'];
/** Acknowledged appends between two faults at least, and behind the last one. */
const APPENDS_PER_FAULT = 40;
const CUTS = 100;
/** A connection is cut after up to this many bytes of both directions: some in the head of their first request, some after several requests. */
const CUT_BYTES_MAX = 6_000;

export class Faults {
  #server;
  #options;
  #successor;
  #folder;
  #proxy;
  #left;
  /** Acknowledged appends when the last fault was over; the next call of `progress` has them. */
  #begun;

  /** Starts a server whose process `ends` several times, or whose connections have `cuts`. */
  static async start(kind) {
    const faults = new Faults();
    faults.#folder = mkdtempSync(join(tmpdir(), 'encke-faults-'));
    faults.#options = { data: join(faults.#folder, 'data'), listen: await fixedAddress() };
    faults.#server = await Encke.start(faults.#options);
    await create(faults.#server, STREAM);
    faults.#left = kind === 'ends' ? [...ENDS] : [];
    if (kind === 'cuts') faults.#proxy = await CuttingProxy.start(faults.#options.listen);
    return faults;
  }

  get url() {
    return this.#proxy?.url ?? this.#server.url;
  }

  /** Takes the number of acknowledged appends; whether all faults are over. */
  async progress(count) {
    if (this.#proxy) return this.#proxy.cuts >= CUTS;
    this.#begun ??= count;
    if (count < this.#begun + APPENDS_PER_FAULT) return false;
    const next = this.#left.shift();
    if (next === undefined) return true;
    await this.#end(next);
    this.#begun = undefined;
    return false;
  }

  async #end(how) {
    if (how === 'upgrade') {
      const { stdout } = await promisify(execFile)(BINARY, ['upgrade', '--json', this.#options.data]);
      this.#successor = JSON.parse(stdout).process;
      return;
    }
    if (how === 'kill' && this.#successor) process.kill(this.#successor, 'SIGKILL');
    this.#successor = undefined;
    await this.#server[how]();
    this.#server = await Encke.start(this.#options);
  }

  /** Checks the stream against the number of acknowledged appends of each writer, whose records are `[writer, number]`. */
  async check(acknowledged) {
    this.#proxy?.close();
    const stored = await read(this.#server, STREAM);
    const names = Object.keys(acknowledged);
    assert.ok(names.length > 0);
    for (const name of names) {
      const numbers = stored.filter(([writer]) => writer === name).map(([, number]) => number);
      assert.deepEqual(numbers, Array.from({ length: acknowledged[name] }, (_, number) => number), `each append of ${name} is stored once and in order`);
    }
    assert.ok(stored.every(([writer]) => names.includes(writer)));
    return stored.length;
  }

  async stop() {
    this.#proxy?.close();
    await this.#server.stop().finally(() => rmSync(this.#folder, { recursive: true, force: true }));
  }
}

/** Forwards bytes to a server, and cuts each connection after a random number of them. */
class CuttingProxy {
  #server;
  #sockets = new Set();
  cuts = 0;

  static async start(target) {
    const proxy = new CuttingProxy();
    const [host, port] = target.split(':');
    proxy.#server = createServer((client) => proxy.#forward(client, connect(Number(port), host)));
    await once(proxy.#server.listen(0, '127.0.0.1'), 'listening');
    proxy.url = `http://127.0.0.1:${proxy.#server.address().port}`;
    return proxy;
  }

  close() {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #forward(client, server) {
    let left = Math.floor(Math.random() * CUT_BYTES_MAX);
    const both = [client, server];
    for (const [socket, other] of [both, [server, client]]) {
      this.#sockets.add(socket.setNoDelay());
      socket.on('error', () => {});
      socket.on('close', () => {
        this.#sockets.delete(socket);
        other.destroy();
      });
      socket.on('data', (data) => {
        if (left > data.length) {
          left -= data.length;
          other.write(data);
          return;
        }
        // A part of the bytes arrives, and nothing behind it.
        other.write(data.subarray(0, left));
        left = 0;
        this.cuts += 1;
        for (const each of both) each.pause().destroySoon();
      });
    }
  }
}

/** Serves another process. A line of the input has a `count` for `progress`, or `acknowledged` for `check`, and gets a line. */
async function serve() {
  const faults = await Faults.start(process.argv[2]);
  console.log(JSON.stringify({ url: faults.url }));
  for await (const line of createInterface({ input: process.stdin })) {
    const { count, acknowledged } = JSON.parse(line);
    console.log(JSON.stringify(acknowledged ? { stored: await faults.check(acknowledged) } : { isOver: await faults.progress(count) }));
  }
  await faults.stop();
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await serve();
