#!/usr/bin/env node
// Feeds the earthquakes into a JSON stream, one event each, in the order in which the earth shook.
//
// It may be stopped, started again, started twice at once, or lose its server half-way: event n is sent as sequence n of
// one named producer, so the server takes each exactly once, and the feed begins where the stream ends.

import { parseArgs } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';
import { DurableStream, stream as read } from '@durable-streams/client';
import { quakes } from './quakes.mjs';

const PRODUCER = 'quakes-feed';
/** How long the client waits at most between two attempts while the server is away. */
const RETRY_MS_MAX = 2_000;
const HELP = `Feeds a week of earthquakes into a durable stream.

  node feed.mjs [options]

  --url URL    the stream (default http://127.0.0.1:4437/v1/stream/quakes)
  --rate N     events per second; 0 is as fast as they are acknowledged (default 20)
  --until N    stop when the stream holds N events (default: all)
  --reset      delete the stream first
  --help       this text`;

const { values: options } = parseArgs({
  options: {
    url: { type: 'string', default: 'http://127.0.0.1:4437/v1/stream/quakes' },
    rate: { type: 'string', default: '20' },
    until: { type: 'string' },
    reset: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

try {
  if (options.help) console.log(HELP);
  else await feed();
} catch (error) {
  console.error(`feed: ${error.message}`);
  process.exitCode = 1;
}

async function feed() {
  const events = quakes();
  const rate = number('rate', options.rate);
  const until = Math.min(events.length, number('until', options.until ?? String(events.length)));

  // The sequence is ours to number: the client's own producer would number batches, which end where time wants it.
  let sequence = 0;
  const stream = new DurableStream({
    url: options.url,
    contentType: 'application/json',
    batching: false,
    backoffOptions: { initialDelay: 100, maxDelay: RETRY_MS_MAX, multiplier: 1.5 },
    headers: { 'Producer-Id': PRODUCER, 'Producer-Epoch': '0', 'Producer-Seq': () => String(sequence) },
  });

  await reachable();
  if (options.reset && (await stream.head()).exists) await stream.delete();
  if (!(await stream.head()).exists) await DurableStream.create({ url: options.url, contentType: 'application/json' });

  const first = await alreadyThere(events);
  if (first > 0) console.log(`${first} of ${events.length} are already there`);
  const showProgress = progressLine(first, until);
  const started = performance.now();
  for (sequence = first; sequence < until; sequence++) {
    if (rate > 0) await sleep(started + ((sequence - first) * 1000) / rate - performance.now());
    await stream.append(JSON.stringify(events[sequence]));
    showProgress(sequence + 1, events[sequence]);
  }
  const seconds = (performance.now() - started) / 1000;
  console.log(`fed ${Math.max(0, until - first)} events in ${seconds.toFixed(1)} s; the stream holds ${Math.max(first, until)}`);
}

/** Says so at once when nothing answers; later, when the feed is under way, it waits for the server instead. */
async function reachable() {
  await fetch(options.url, { method: 'HEAD' }).catch((error) => {
    throw new Error(`nothing answers at ${options.url} (${error.cause?.code ?? error.message}); is the server running?`);
  });
}

/** How many of the events the stream holds; throws when it holds anything else. */
async function alreadyThere(events) {
  const held = await (await read({ url: options.url, live: false, json: true })).json();
  const strange = held.findIndex((event, n) => event.id !== events[n]?.id);
  if (strange >= 0) throw new Error(`the stream holds something else at event ${strange}; --reset deletes it first`);
  return held.length;
}

/** Shows how far the feed is: one line that is written over on a terminal, a line now and then elsewhere. */
function progressLine(first, until) {
  let shown_ms = 0;
  return (done, { time, magnitude, place }) => {
    const line = `${done} of ${until}  ${time.slice(0, 16).replace('T', ' ')}  M ${magnitude.toFixed(1)}  ${place}`;
    if (process.stdout.isTTY) {
      process.stdout.write(`\r\x1b[K${line.slice(0, process.stdout.columns - 1)}${done === until ? '\n' : ''}`);
    } else if (performance.now() - shown_ms > 1000 || done === until || done === first + 1) {
      shown_ms = performance.now();
      console.log(line);
    }
  };
}

function number(name, text) {
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0) throw new Error(`--${name} ${text}: not a number from 0 up`);
  return value;
}
