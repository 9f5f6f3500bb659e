// The cases that all clients share (clients/cases), in Node: faults of a scripted server, and the outcome of each call.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, EnckeError } from '@encke/client';
import { Pool } from '@encke/client/jobs';
import { Channel } from '@encke/client/websocket';
import { WebSocket } from 'ws';
import { casesOf } from '../../cases/cases.mjs';
import { Play } from '../../cases/server.mjs';
import { waitFor } from '../../../tests/web/wait.mjs';

/** Plays at the same time. */
const PLAYS = 48;
/** The time in which a call settles when its limit is over, also on a busy machine. */
const SETTLE_MS = 30_000;

/** Responses of something else than Encke are repeated for so long. */
const FOREIGN_MS_MAX = 1_000;

const unhandled = [];
const note = (error) => unhandled.push(error);

before(() => {
  // The scripted server's certificate is its own.
  process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0';
  process.on('unhandledRejection', note).on('uncaughtException', note);
});
after(() => assert.deepEqual(unhandled, [], 'nothing is unhandled'));

describe('cases of all clients', { concurrency: PLAYS }, () => {
  const cases = casesOf('js');
  assert.ok(cases.length > 100);
  for (const one of cases) {
    test(one.name, async () => {
      const { failures, length } = await play(one);
      assert.deepEqual(failures, []);
      if (!one.answers?.some(({ at }) => at === 'every')) return;
      assert.ok(length > 0);
      const plays = Array.from({ length }, async (_, position) => ({ position, ...(await play(one, position)) }));
      const failed = (await Promise.all(plays)).filter(({ failures }) => failures.length);
      assert.deepEqual(failed.slice(0, 3), [], `of ${length} positions`);
    });
  }
});

let free = PLAYS;
const waiting = [];

/** Plays a case when fewer than `PLAYS` are under way. */
async function play(one, position) {
  if (free > 0) free -= 1;
  else await new Promise((resolve) => waiting.push(resolve));
  try {
    return await playNow(one, position);
  } finally {
    const next = waiting.shift();
    if (next) next();
    else free += 1;
  }
}

async function playNow(one, position) {
  const server = await Play.start(one, position);
  const clients = new Clients(one, server);
  try {
    if (one.unlimited) clients.begin(one.unlimited);
    const results = one.together ? await Promise.all(one.calls.map((call) => clients.settle(call))) : [];
    if (!one.together) for (const call of one.calls) results.push(await clients.settle(call));
    // A play without a position shows how long the response is.
    const isMeasured = position === undefined && one.answers?.some(({ at }) => at === 'every');
    return { failures: isMeasured ? [] : server.failures(results, 'js'), length: server.length };
  } finally {
    clients.close();
    server.stop();
  }
}

class Clients {
  #options;
  #limitMs;
  /** The least number of requests that the case expects. */
  #requestsMin;
  #client;
  #channel;
  #server;
  #closing = new AbortController();

  constructor({ limitMs, token, expect }, server) {
    this.#options = { base: server.origin, token: token === 'never' ? () => new Promise(() => {}) : 'secret', foreignMsMax: FOREIGN_MS_MAX };
    this.#limitMs = limitMs;
    this.#requestsMin = expect.requests?.[0] ?? 0;
    this.#server = server;
    this.#client = new Client(this.#options);
  }

  close() {
    this.#channel?.close();
    this.#closing.abort();
  }

  /** Begins a call without a limit. */
  begin(call) {
    this.#call(call, this.#closing.signal).catch(() => {});
  }

  /** The outcome of a call, as the cases have it. */
  async settle(call) {
    const limit = new AbortController();
    let isSettled = false;
    const outcome = this.#call(call, limit.signal).then((value) => ({ ok: true, ...value }), outcomeOf);
    const settled = outcome.then(() => (isSettled = true));
    // On a busy machine the limit could be over before the client has made its requests.
    await waitFor('the requests of the case', () => isSettled || this.#server.seen.length >= this.#requestsMin);
    await Promise.race([settled, sleep(this.#limitMs, undefined, { ref: false })]);
    if (!isSettled) limit.abort(new DOMException('the limit is over', 'TimeoutError'));
    const late = sleep(SETTLE_MS, { error: 'not settled' }, { ref: false });
    return JSON.parse(JSON.stringify(await Promise.race([outcome, late])));
  }

  async #call(call, signal) {
    const [, name, argument] = /^(\S+)(?: (.*))?$/.exec(call);
    if (name === 'recreate') return this.#server.recreate();
    if (name === 'create') return this.#client.create(argument ?? 's', { signal });
    if (name === 'close') return this.#client.close('s', 'done', { signal });
    if (name === 'stop') return this.#client.stop('s', { signal });
    if (name === 'post') return new Pool('p', this.#options).post(JSON.parse(argument), { signal });
    if (name === 'append') {
      const { nextOffset, duplicate } = await this.#client.publish('s', JSON.parse(argument), { signal });
      return { next: nextOffset, duplicate };
    }
    if (name === 'follow') return follow(this.#client.subscribe({ stream: 's', from: '-1', signal }));
    if (name === 'follow-url') return follow(this.#client.subscribe({ url: `${this.#options.base}/v1/stream/s`, from: '-1', signal }));
    this.#channel ??= new Channel({ ...this.#options, WebSocket });
    signal.addEventListener('abort', () => this.#channel.close());
    if (name === 'channel-append') {
      const { offset, duplicate = false } = await this.#channel.append('s', JSON.parse(argument));
      return { next: offset, duplicate };
    }
    if (name === 'channel-follow') return follow(this.#channel.subscribe({ stream: 's', from: '-1' }));
    throw new Error(`no call ${name}`);
  }
}

async function follow(subscription) {
  const all = [];
  for await (const { messages } of subscription) all.push(...messages);
  return { messages: all, end: subscription.endReason };
}

/** An error as the cases have it. A network that does not answer, and a limit that is over, are `unreachable`. */
function outcomeOf(error) {
  if (error instanceof EnckeError && error.code !== 'channel_closed') return { error: error.code, status: error.status };
  const isUnreachable = error instanceof EnckeError || error instanceof TypeError || ['TimeoutError', 'AbortError'].includes(error?.name);
  return isUnreachable ? { error: 'unreachable' } : { error: String(error?.stack ?? error) };
}
