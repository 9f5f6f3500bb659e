// An issuer's server of keys on loopback, with the faults that such servers have.

import { once } from 'node:events';
import { createServer } from 'node:http';
import { gzipSync } from 'node:zlib';

/** What `oversized` sends at least, before it is compressed. */
const OVERSIZED_BYTES = 10_000_000;

export class KeyServer {
  #server;
  #responders = new Map();
  #counts = new Map();
  #arrivals = [];

  /** Starts a server on a free port. A path without a responder is not found. */
  static async start() {
    const server = new KeyServer();
    server.#server.listen(0, '127.0.0.1');
    await once(server.#server, 'listening');
    return server;
  }

  constructor() {
    this.#server = createServer((request, response) => {
      const path = request.url;
      this.#counts.set(path, this.requests(path) + 1);
      response.on('error', () => {}); // The client closes when it has had enough.
      const respond = this.#responders.get(path) ?? ((_, none) => none.writeHead(404).end());
      respond(request, response);
      this.#arrivals = this.#arrivals.filter((arrived) => !arrived());
    });
  }

  /** Sets how the server responds at a path, and returns the URL of that path. */
  respond(path, responder) {
    this.#responders.set(path, responder);
    return `http://127.0.0.1:${this.#server.address().port}${path}`;
  }

  /** How many requests for a path have come. */
  requests(path) {
    return this.#counts.get(path) ?? 0;
  }

  /** Waits until that many requests for a path have come. */
  async requested(path, count) {
    await new Promise((resolve) => {
      const arrived = () => this.requests(path) >= count && (resolve(), true);
      if (!arrived()) this.#arrivals.push(arrived);
    });
  }

  /** Closes the port and all connections. */
  async close() {
    if (!this.#server.listening) return;
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }
}

const JSON_TYPE = { 'Content-Type': 'application/json' };

/** Responds with a key set. */
export const keySet = (keys) => (_, response) => response.writeHead(200, JSON_TYPE).end(JSON.stringify({ keys }));

/** Sends the head and the first half of a key set at once, and the rest when `release` is called. */
export function slow(keys) {
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const respond = async (_, response) => {
    const text = JSON.stringify({ keys });
    response.writeHead(200, JSON_TYPE).write(text.slice(0, text.length / 2));
    await released;
    response.end(text.slice(text.length / 2));
  };
  return { respond, release };
}

/** Never responds. */
export const silent = () => {};

/** Sends a space now and then, without an end. */
export function trickling(_, response) {
  response.writeHead(200, JSON_TYPE);
  const timer = setInterval(() => response.write(' '), 20);
  response.on('close', () => clearInterval(timer));
}

export const redirect = (status, location) => (_, response) => response.writeHead(status, { Location: location }).end();

/** Sends a key set that is right but for its length: `encoding` is `length`, `chunked` or `gzip`. */
export function oversized(keys, encoding) {
  const text = JSON.stringify({ padding: 'x'.repeat(OVERSIZED_BYTES), keys });
  const body = encoding === 'gzip' ? gzipSync(text) : Buffer.from(text);
  const fields = { length: { 'Content-Length': body.length }, chunked: {}, gzip: { 'Content-Encoding': 'gzip' } };
  return (_, response) => {
    response.writeHead(200, { ...JSON_TYPE, ...fields[encoding] });
    response.write(body);
    response.end();
  };
}
