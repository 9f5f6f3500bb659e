// One server process of the real binary, as the tests of this folder use it: started in a data folder, asked until it
// is ready, stopped by SIGTERM. Whoever starts one stops it; a run that dies takes its servers along.

import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { endWithUs } from './child.mjs';

/** The binary under test: `ENCKE_BIN`, or the release build of this workspace. */
export const BINARY = process.env.ENCKE_BIN ?? fileURLToPath(new URL('../../target/release/encke', import.meta.url));

/** How long a start may take, recovery of the log included. */
const START_MS_MAX = 60_000;
/** How long the server may take from SIGTERM to its exit. */
const STOP_MS_MAX = 30_000;
/** How much of what the server printed is kept, to be shown when something goes wrong. */
const OUTPUT_CHARS_MAX = 64 * 1024;

export class Encke {
  #child;
  #exit;
  #output = '';
  #agent;

  /** Where it serves, without a slash at the end, such as `http://127.0.0.1:40123`. */
  url;

  /**
   * Starts a server on `listen` (by default a free port) with its data in `data`, and waits until it is ready. With `tls`, a
   * certificate of certificate.mjs, it serves https.
   */
  static async start({ data, listen = '127.0.0.1:0', tls, args = [] }) {
    if (!existsSync(BINARY)) {
      throw new Error(`${BINARY} is missing: build it with \`cargo build --release -p encke\`, or set ENCKE_BIN`);
    }
    const tlsArgs = tls ? ['--tls-cert', tls.cert, '--tls-key', tls.key] : [];
    const server = new Encke(['serve', '--listen', listen, '--data', data, ...tlsArgs, ...args], tls);
    try {
      await server.#ready();
    } catch (error) {
      server.#child.kill('SIGKILL');
      throw error;
    }
    return server;
  }

  constructor(args, tls) {
    this.#agent = tls ? new https.Agent({ keepAlive: true, ca: readFileSync(tls.cert) }) : new http.Agent({ keepAlive: true });
    this.#child = spawn(BINARY, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    endWithUs(this.#child);
    this.#exit = new Promise((resolve) => {
      this.#child.once('error', (error) => resolve({ error }));
      this.#child.once('exit', (code, signal) => resolve({ code, signal }));
    });
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => {
        this.#output = (this.#output + text).slice(-OUTPUT_CHARS_MAX);
        this.url ??= /listening on (https?:\/\/[0-9.:]+)\s/.exec(this.#output)?.[1];
      });
    }
  }

  /** What the server printed, its last 64 K characters. */
  get output() {
    return this.#output;
  }

  /** Where it serves operators, if they have an address of their own. */
  get operators() {
    return /for operators on (https?:\/\/[0-9.:]+)\s/.exec(this.#output)?.[1];
  }

  /** The number of the server's process. */
  get pid() {
    return this.#child.pid;
  }

  /** The server's address as `--listen` takes it, to start another one in its place. */
  get listen() {
    return new URL(this.url).host;
  }

  /** The response to a request over HTTP/1.1; with TLS only the server's own certificate is trusted. */
  request(method, path, { headers = {}, body } = {}) {
    const { request } = this.url.startsWith('https:') ? https : http;
    return new Promise((resolve, reject) => {
      const outgoing = request(this.url + path, { method, headers, agent: this.#agent }, async (response) => {
        try {
          const chunks = await response.setEncoding('utf8').toArray();
          resolve({ status: response.statusCode, headers: response.headers, body: chunks.join('') });
        } catch (error) {
          reject(error);
        }
      });
      outgoing.once('error', reject).end(body);
    });
  }

  /** The value of a metric; with labels, the sum of its values. */
  async metric(name) {
    const { body } = await this.request('GET', '/metrics');
    const values = [...body.matchAll(/^([a-z0-9_]+)(?:\{.*\})? ([^ \n]+)$/gm)].filter((line) => line[1] === name);
    if (values.length === 0) throw this.#failure(`has no metric ${name}`);
    return values.reduce((sum, line) => sum + Number(line[2]), 0);
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
        const { status } = await this.request('GET', '/readyz').catch(() => ({}));
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
