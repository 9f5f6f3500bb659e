// A load of appends and deliveries over WebSocket that is cut several times by kill -9, and what must be true at its end.

import assert from 'node:assert/strict';
import { Encke } from './encke.mjs';
import { fixedAddress } from './ports.mjs';
import { waitFor } from './wait.mjs';

const JSON_TYPE = { 'Content-Type': 'application/json' };
const [A, B, C] = ['load/a', 'load/b', 'load/c'];
const PATTERN = 'load/**';
const LIST = [C, A, B];
const ROUNDS = 4;
/** How many records each subscription gets at least before the server is killed. */
const RECORDS_PER_ROUND = 100;
/** Appends that are sent and not acknowledged, at any time. */
const WINDOW = 20;

/** The clients of the load. `load/c` has appends without a producer, which are not repeated. */
export const LOAD = {
  subscriptions: [{ stream: A }, { stream: PATTERN }, { streams: LIST }],
  appenders: [
    { streams: [A, B], producer: 'writer-1', window: WINDOW },
    { streams: [C], window: WINDOW },
  ],
};
/** The names of the subscriptions, in their order. */
const NAMES = [A, PATTERN, LIST.join(',')];

/** Creates streams of JSON. */
export async function create(encke, ...streams) {
  for (const stream of streams) {
    const { status, body } = await encke.request('PUT', `/v1/stream/${stream}`, { headers: JSON_TYPE });
    assert.equal(status, 201, body);
  }
}

/** Appends a value over HTTP. */
export async function append(encke, stream, value) {
  const options = { headers: JSON_TYPE, body: JSON.stringify(value) };
  const { status, body } = await encke.request('POST', `/v1/stream/${stream}`, options);
  assert.equal(status, 204, body);
}

/** All values of a stream. */
export async function read(encke, stream) {
  const values = [];
  for (let offset = '-1'; ; ) {
    const { status, headers, body } = await encke.request('GET', `/v1/stream/${stream}?offset=${offset}`);
    assert.equal(status, 200, body);
    values.push(...JSON.parse(body));
    if (headers['stream-up-to-date'] === 'true') return values;
    offset = headers['stream-next-offset'];
  }
}

/**
 * Runs the load and kills the server in the middle of it, several times. `startLoad(url)` starts a `Load` of channel-client.mjs where
 * the client runs, and returns an object with its methods. `options` are those of `Encke.start`.
 */
export async function everyRecordOnceOverCuts(options, startLoad) {
  const listen = await fixedAddress();
  let encke = await Encke.start({ ...options, listen });
  let load;
  try {
    await create(encke, A, B, C);
    load = await startLoad(encke.url);
    const hasCounts = (counts) => waitFor(`subscriptions have ${JSON.stringify(counts)} records`, async () => {
      const state = await load.state();
      assert.deepEqual(state.errors, []);
      return NAMES.every((name) => state.counts[name] >= counts[name]);
    });
    for (let round = 1; round <= ROUNDS; round += 1) {
      const { counts } = await load.state();
      await hasCounts(Object.fromEntries(NAMES.map((name) => [name, counts[name] + RECORDS_PER_ROUND])));
      await encke.kill();
      const { pending, opened } = await load.state();
      for (const [index, count] of pending.entries()) assert.equal(count, WINDOW, `appender ${index} is in the middle of its load`);
      // At another address, where the clients do not come: records that no subscriber has got when it connects again.
      encke = await Encke.start(options);
      for (const stream of [A, B, C]) await append(encke, stream, `round ${round}`);
      await encke.kill();
      encke = await Encke.start({ ...options, listen });
      await waitFor('every client has connected again', async () => {
        const now = (await load.state()).opened;
        return now.every((times, index) => times > opened[index]);
      });
    }
    await load.stopAppends();
    await waitFor('every append is acknowledged', async () => (await load.state()).pending.every((count) => count === 0));
    const stored = {};
    for (const stream of [A, B, C]) stored[stream] = await read(encke, stream);
    const inAll = Object.values(stored).flat().length;
    await hasCounts(Object.fromEntries(NAMES.map((name) => [name, name === A ? stored[A].length : inAll])));
    const results = await load.results();
    checkAppends(stored, results.appenders);
    checkRecords(stored, results.records);
    await encke.stop();
  } finally {
    await load?.end();
    await encke.kill(); // Does nothing to a server that has stopped.
  }
}

/** Checks what is stored against what was acknowledged. */
function checkAppends(stored, [producer, plain]) {
  const numbers = (stream) => stored[stream].filter((value) => typeof value === 'number');
  const others = Array.from({ length: ROUNDS }, (_, index) => `round ${index + 1}`);
  for (const stream of [A, B]) {
    const all = Array.from({ length: producer.acknowledged[stream].length }, (_, index) => index);
    assert.deepEqual(numbers(stream), all, `${stream}: each append of the producer is stored once`);
  }
  for (const stream of [A, B, C]) assert.deepEqual(stored[stream].filter((value) => typeof value === 'string'), others, stream);
  const acknowledged = new Set(plain.acknowledged[C]);
  const unknown = new Set(plain.unknown[C]);
  assert.equal(unknown.size, ROUNDS * WINDOW);
  const certain = numbers(C).filter((number) => !unknown.has(number));
  assert.deepEqual(certain, [...acknowledged], `${C}: each acknowledged append is stored once`);
  const increases = numbers(C).every((number, index, all) => index === 0 || number > all[index - 1]);
  assert.ok(increases, `${C}: nothing is stored twice or out of order`);
}

/** Checks what came to the subscriptions against what is stored. */
function checkRecords(stored, records) {
  for (const name of NAMES) {
    for (const stream of name === A ? [A] : [A, B, C]) {
      const values = records[name].filter((record) => record.stream === stream).map(({ value }) => value);
      assert.deepEqual(values, stored[stream], `${name}: each record of ${stream} comes once and in order`);
    }
  }
  assert.deepEqual(records[PATTERN], records[LIST.join(',')], 'a pattern and a list have one order');
}
