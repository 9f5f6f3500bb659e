// A server for the tests of a file: restarted at one address, with streams of JSON that tests create, append to and close over HTTP.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Encke } from '../../../tests/web/encke.mjs';
import { fixedAddress } from '../../../tests/web/ports.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };

export class Server {
  #options;
  #encke;
  #folder;

  static async start(options = {}) {
    const server = new Server();
    server.#folder = mkdtempSync(join(tmpdir(), 'encke-client-'));
    const { tls, args } = typeof options === 'function' ? options(server.#folder) : options;
    server.#options = { data: join(server.#folder, 'data'), tls, args, listen: await fixedAddress() };
    server.#encke = await Encke.start(server.#options);
    return server;
  }

  get url() {
    return this.#encke.url;
  }

  get tls() {
    return this.#options.tls;
  }

  metric(name) {
    return this.#encke.metric(name);
  }

  /** Ends the server by `kill` (-9) or `stop` (SIGTERM), and starts it again. What happens `meanwhile` is at an address where no client comes. */
  async restart(how, meanwhile) {
    await this.#encke[how]();
    if (meanwhile) {
      this.#encke = await Encke.start({ ...this.#options, listen: undefined });
      await meanwhile();
      await this.#encke.kill();
    }
    this.#encke = await Encke.start(this.#options);
  }

  async end() {
    await this.#encke?.stop();
    rmSync(this.#folder, { recursive: true, force: true });
  }

  async request(method, path, options = {}) {
    const response = await this.#encke.request(method, path, options);
    assert.ok(response.status >= 200 && response.status < 300, `${method} ${path}: ${response.status} ${response.body}`);
    return response;
  }

  create(stream, headers = {}) {
    return this.request('PUT', `/v1/stream/${stream}`, { headers: { ...JSON_TYPE, ...headers } });
  }

  append(stream, ...messages) {
    return this.request('POST', `/v1/stream/${stream}`, { headers: JSON_TYPE, body: JSON.stringify(messages) });
  }

  close(stream, reason = 'done') {
    return this.request('POST', `/v1/stream/${stream}`, { headers: { 'Stream-Closed': 'true', 'Encke-End-Reason': reason } });
  }

  delete(stream) {
    return this.request('DELETE', `/v1/stream/${stream}`);
  }

  /** All messages of a stream. */
  async read(stream) {
    const messages = [];
    for (let offset = '-1'; ; ) {
      const { headers, body } = await this.request('GET', `/v1/stream/${stream}?offset=${offset}`);
      messages.push(...JSON.parse(body));
      if (headers['stream-up-to-date'] === 'true') return messages;
      offset = headers['stream-next-offset'];
    }
  }
}

/** The numbers from 0 up to `end`. */
export const numbers = (end) => Array.from({ length: end }, (_, number) => number);
