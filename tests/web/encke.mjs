// One server process of the real binary, as the tests of this folder use it: started in a data folder, asked until it
// is ready, stopped by SIGTERM. Whoever starts one stops it; a run that dies takes its servers along.

import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { endWithUs } from './child.mjs';

/** The binary under test: `ENCKE_BIN`, or the release build of this workspace. */
export const BINARY = process.env.ENCKE_BIN ?? fileURLToPath(new URL('../../target/release/encke', import.meta.url));

/** How long a start may take, recovery of the log included. */
const START_MS_MAX = 15_000;
/** How long the server may take from SIGTERM to its exit. */
const STOP_MS_MAX = 10_000;
/** How much of what the server printed is kept, to be shown when something goes wrong. */
const OUTPUT_CHARS_MAX = 64 * 1024;

export class Encke {
  #child;
  #exit;
  #output = '';

  /** Where it serves, without a slash at the end, such as `http://127.0.0.1:40123`. */
  url;

  /** Starts a server on `listen` (by default a free port) with its data in `data`, and waits until it is ready. */
  static async start({ data, listen = '127.0.0.1:0', args = [] }) {
    if (!existsSync(BINARY)) {
      throw new Error(`${BINARY} is missing: build it with \`cargo build --release -p encke\`, or set ENCKE_BIN`);
    }
    const server = new Encke(['serve', '--listen', listen, '--data', data, ...args]);
    try {
      await server.#ready();
    } catch (error) {
      server.#child.kill('SIGKILL');
      throw error;
    }
    return server;
  }

  constructor(args) {
    this.#child = spawn(BINARY, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    endWithUs(this.#child);
    this.#exit = new Promise((resolve) => {
      this.#child.once('error', (error) => resolve({ error }));
      this.#child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => {
        this.#output = (this.#output + text).slice(-OUTPUT_CHARS_MAX);
        this.url ??= /listening on (http:\/\/[0-9.:]+)\s/.exec(this.#output)?.[1];
      });
    }
  }

  /** What the server printed, its last 64 K characters. */
  get output() {
    return this.#output;
  }

  /** The number of the server's process. */
  get pid() {
    return this.#child.pid;
  }

  /** The server's address as `--listen` takes it, to start another one in its place. */
  get listen() {
    return new URL(this.url).host;
  }

  /** Asks the server to stop, and throws unless it exits by itself, in time, with code 0. Returns the milliseconds. */
  async stop() {
    const started = performance.now();
    this.#child.kill('SIGTERM');
    const end = await Promise.race([this.#exit, sleep(STOP_MS_MAX, { late: true }, { ref: false })]);
    if (end.late) {
      this.#child.kill('SIGKILL');
      throw this.#failure(`still running ${STOP_MS_MAX} ms after SIGTERM`);
    }
    if (this.#output.includes('panicked at')) throw this.#failure('a thread panicked');
    if (end.code !== 0) throw this.#failure(`after SIGTERM it ended with ${JSON.stringify(end)} instead of code 0`);
    return performance.now() - started;
  }

  /** Kills the server, and waits until it is gone. */
  async kill() {
    this.#child.kill('SIGKILL');
    await this.#exit;
  }

  async #ready() {
    const deadline = performance.now() + START_MS_MAX;
    let exited;
    void this.#exit.then((end) => (exited = end));
    while (performance.now() < deadline) {
      if (exited) throw this.#failure(`ended at its start with ${exited.error ?? JSON.stringify(exited)}`);
      if (this.url) {
        const status = await fetch(`${this.url}/readyz`).then((answer) => answer.status, () => undefined);
        if (status === 200) return;
      }
      await sleep(20);
    }
    throw this.#failure(`not ready after ${START_MS_MAX} ms`);
  }

  #failure(what) {
    return new Error(`server: ${what}; it printed:\n${this.#output || '(nothing)'}`);
  }
}
