// A fleet for tests: one real broker and three nodes, and a proxy that sends each request to another node.

import { spawn } from 'node:child_process';
import http from 'node:http';
import net from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { endWithUs } from './child.mjs';
import { Encke } from './encke.mjs';
import { fixedPort } from './ports.mjs';

/** The broker that `make test` installs. */
const NATS_SERVER = process.env.NATS_SERVER ?? 'nats-server';
const NODES = ['a', 'b', 'c'];
const BROKER_START_MS_MAX = 60_000;

/** One broker, with its data in a folder. */
export class Broker {
  #child;

  /** Where nodes connect to it. */
  url;

  static async start(folder) {
    const broker = new Broker();
    const port = await fixedPort();
    broker.url = `nats://127.0.0.1:${port}`;
    broker.#child = spawn(NATS_SERVER, ['-a', '127.0.0.1', '-p', port, '-js', '-sd', folder], { stdio: 'ignore' });
    endWithUs(broker.#child);
    const failed = new Promise((_, reject) => broker.#child.once('error', reject));
    await Promise.race([listens(port), failed]);
    return broker;
  }

  /** The number of its process. */
  get pid() {
    return this.#child.pid;
  }

  /** Kills it, and waits until it is gone: its files may be removed then. */
  async kill() {
    const ended = new Promise((resolve) => this.#child.once('exit', resolve));
    this.#child.kill('SIGKILL');
    await ended;
  }
}

export class Fleet {
  #broker;
  #proxy;

  /** The nodes, each an `Encke`. */
  nodes = [];

  /** Starts a broker and three nodes with their data below `folder`, and the proxy in front of them. */
  static async start({ folder, args = [] }) {
    const fleet = new Fleet();
    fleet.#broker = await Broker.start(join(folder, 'broker'));
    for (const node of NODES) {
      fleet.nodes.push(await Encke.start({ data: join(folder, `node-${node}`), args: [...nodeArgs(fleet.#broker, node), ...args] }));
    }
    let turn = 0;
    fleet.#proxy = http.createServer((request, response) => {
      turn += 1;
      pass(request, response, fleet.nodes[turn % fleet.nodes.length].url);
    });
    await new Promise((resolve) => fleet.#proxy.listen(0, '127.0.0.1', resolve));
    return fleet;
  }

  /** Where the proxy serves. */
  get url() {
    return `http://127.0.0.1:${this.#proxy.address().port}`;
  }

  /** Stops the nodes, then the broker. Returns the milliseconds that the slowest node took. */
  async stop() {
    this.#proxy.closeAllConnections();
    this.#proxy.close();
    const times = await Promise.all(this.nodes.map((node) => node.stop()));
    await this.#broker.kill();
    return Math.max(...times);
  }
}

/** What makes a server a node of the fleet of a broker. */
export function nodeArgs(broker, node) {
  return ['--fleet', broker.url, '--node', node, '--tuning', 'fleet-replicas=1'];
}

/** Sends a request to a node, and its response back. */
function pass(request, response, url) {
  const { method, rawHeaders } = request;
  const onward = http.request(url + request.url, { method, headers: rawHeaders, setDefaultHeaders: false, agent: false });
  onward.once('response', (answer) => {
    response.sendDate = false;
    response.writeHead(answer.statusCode, answer.statusMessage, withoutHops(answer.rawHeaders));
    // An event stream begins with its head.
    response.flushHeaders();
    answer.once('error', () => response.destroy());
    answer.pipe(response);
  });
  onward.once('error', () => response.destroy());
  response.once('close', () => onward.destroy());
  request.pipe(onward);
}

/** Header fields that are for one connection stay behind (RFC 9110, section 7.6.1). */
function withoutHops(raw) {
  const fields = [];
  for (let index = 0; index < raw.length; index += 2) {
    if (!/^(connection|keep-alive|transfer-encoding)$/i.test(raw[index])) fields.push(raw[index], raw[index + 1]);
  }
  return fields;
}

async function listens(port) {
  const deadline = performance.now() + BROKER_START_MS_MAX;
  while (performance.now() < deadline) {
    const open = await new Promise((resolve) => {
      const socket = net.connect(port, '127.0.0.1', () => resolve(true)).once('error', () => resolve(false));
      socket.once('connect', () => socket.destroy());
    });
    if (open) return;
    await sleep(20);
  }
  throw new Error(`the broker does not listen after ${BROKER_START_MS_MAX} ms`);
}
