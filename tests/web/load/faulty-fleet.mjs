// A broker and three nodes that can be killed, stopped, started again, and cut off from the broker.

import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { endWithUs } from '../child.mjs';
import { Encke } from '../encke.mjs';
import { Broker, nodeArgs } from '../fleet.mjs';
import { fixedAddress } from '../ports.mjs';
import { wait } from './process.mjs';

const NODES = ['a', 'b', 'c'];
const HEALTH_EVERY_MS = 500;
/** How long the answer of a node to a load balancer may take. */
const HEALTH_MS_MAX = 2_000;

export class FaultyFleet {
  #folder;
  #args;
  #turn = 0;

  broker;
  /** Each with its name, address, server, and the process that passes its connections to the broker on. */
  nodes = [];

  static async start({ folder, args }) {
    const fleet = new FaultyFleet();
    fleet.#folder = folder;
    fleet.#args = args;
    fleet.broker = await Broker.start(join(folder, 'broker'));
    for (const name of NODES) {
      const node = { name, address: await fixedAddress(), link: await startLink(fleet.broker.url), isRunning: false, isReady: false };
      fleet.nodes.push(node);
      await fleet.start(node);
      void watch(node);
    }
    return fleet;
  }

  get running() {
    return this.nodes.filter((node) => node.isRunning);
  }

  async start(node) {
    const link = { url: `nats://127.0.0.1:${node.link.port}` };
    const args = [...nodeArgs(link, node.name), ...this.#args];
    node.server = await Encke.start({ data: join(this.#folder, node.name), listen: node.address, args });
    node.isRunning = node.isReady = true;
  }

  /** Ends a node by a function. */
  async end(node, by) {
    await by();
    node.isRunning = node.isReady = false;
  }

  /** The address of the next node that is ready, other than the one given. */
  choose(other) {
    const ready = this.nodes.filter((node) => node.isReady && node.address !== other);
    const nodes = ready.length === 0 ? this.nodes : ready;
    return nodes[this.#turn++ % nodes.length].address;
  }

  async stop() {
    await Promise.all(this.running.map((node) => node.server.stop()));
    await this.broker.kill();
  }
}

/** Notes whether a node is ready, as a load balancer does. */
async function watch(node) {
  for (;;) {
    await wait(HEALTH_EVERY_MS);
    const signal = AbortSignal.timeout(HEALTH_MS_MAX);
    const answer = await fetch(`http://${node.address}/readyz`, { signal }).catch(() => undefined);
    node.isReady = node.isRunning && answer?.status === 200;
  }
}

/** Starts a process that passes connections to the broker on. */
async function startLink(url) {
  const script = fileURLToPath(new URL('link.mjs', import.meta.url));
  const child = spawn(process.execPath, [script, new URL(url).port], { stdio: ['ignore', 'pipe', 'inherit'] });
  endWithUs(child);
  const port = await new Promise((resolve, reject) => {
    child.once('error', reject).stdout.once('data', (text) => resolve(Number(text)));
  });
  return { pid: child.pid, port };
}
