#!/usr/bin/env node
// Answers of a model as streams of tokens, by two backends in one run: an application with `resumable-stream` and Redis, and one that appends to
// Encke. Each answer has three readers over HTTP: the first from its begin, one from its middle on, and one that is cut off in the middle and comes back.
//
//   ENCKE_BIN=... REDIS_SERVER=redis-server node bench/resumable-stream.mjs [--answers 100] [--seconds 10] [--rounds 3]
//
// It prints for each backend and round: tokens that are missing or come twice, how old tokens are when a reader has them, and the processor time of the
// application and of what is behind it for each delivered token.

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { endWithUs } from '../child.mjs';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';

const TOKENS_PER_SECOND = 50;
/** Between tokens: a place from which a reader can resume. */
const PLACE = Symbol('place');
const { values: options } = parseArgs({
  options: {
    answers: { type: 'string', default: '100' },
    seconds: { type: 'string', default: '10' },
    rounds: { type: 'string', default: '3' },
    app: { type: 'string' },
    behind: { type: 'string' },
  },
});
const ANSWERS = Number(options.answers);
const TOKENS = Number(options.seconds) * TOKENS_PER_SECOND;

if (options.app) await runApp(options.app, options.behind);
else await runRounds();

/** A token says which one it is and when it was made. */
function token(number) {
  return `${number}@${Date.now()} `;
}

/** Calls `each` with a token, as often as the model makes one. */
async function makeTokens(each) {
  const begin = performance.now();
  for (let number = 0; number < TOKENS; number += 1) {
    await sleep(Math.max(0, begin + (number * 1000) / TOKENS_PER_SECOND - performance.now()));
    each(token(number));
  }
}

/** The application, in a process of its own; it prints its address. */
async function runApp(kind, behind) {
  const answer = kind === 'redis' ? await answerByRedis(behind) : answerByEncke(behind);
  const server = createServer((request, response) => {
    answer(request, response).catch((error) => {
      console.error(error);
      response.destroy();
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  console.log(`http://127.0.0.1:${server.address().port}`);
}

async function answerByRedis(url) {
  const { createClient } = await import('redis');
  const { createResumableStreamContext } = await import('resumable-stream/redis');
  const [publisher, subscriber] = await Promise.all([createClient({ url }).connect(), createClient({ url }).connect()]);
  const context = createResumableStreamContext({ waitUntil: null, publisher, subscriber });
  const model = () => new ReadableStream({
    async start(controller) {
      await makeTokens((text) => controller.enqueue(text));
      controller.close();
    },
  });
  return async (request, response) => {
    const { pathname, searchParams } = new URL(request.url, 'http://app');
    const skip = Number(searchParams.get('skip') ?? 0);
    const stream = request.method === 'POST' ? await context.createNewResumableStream(pathname, model) : await context.resumeExistingStream(pathname, skip);
    if (!stream) return response.writeHead(204).end();
    for await (const text of stream) response.write(text);
    response.end();
  };
}

function answerByEncke(url) {
  return async (request, response) => {
    const target = `${url}/v1/stream${request.url}`;
    const type = { 'Content-Type': 'text/plain' };
    const made = await fetch(target, { method: 'PUT', headers: type });
    response.writeHead(made.status).end();
    let waiting = '';
    let sending;
    // One append at a time; what comes meanwhile goes into the next one.
    const send = async () => {
      while (waiting) {
        const body = waiting;
        waiting = '';
        const sent = await fetch(target, { method: 'POST', headers: type, body });
        if (!sent.ok) throw new Error(`${sent.status} for an append`);
      }
      sending = undefined;
    };
    await makeTokens((text) => {
      waiting += text;
      sending ??= send();
    });
    await sending;
    await fetch(target, { method: 'POST', headers: { 'Stream-Closed': 'true' } });
  };
}

async function runRounds() {
  const folder = mkdtempSync(join(tmpdir(), 'encke-answers-'));
  try {
    for (let round = 1; round <= Number(options.rounds); round += 1) {
      await runRedis(round, join(folder, `redis-${round}`));
      await runEncke(round, join(folder, `encke-${round}`));
    }
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

async function runRedis(round) {
  const [host, port] = (await fixedAddress()).split(':');
  const redis = spawn(process.env.REDIS_SERVER ?? 'redis-server', ['--bind', host, '--port', port, '--save', ''], { stdio: 'ignore' });
  endWithUs(redis);
  await sleep(500);
  const app = await startApp('redis', `redis://${host}:${port}`);
  const read = (answer, { begins, from }) => tokensOf(`${app.url}/${answer}?skip=${from.characters}`, begins ? 'POST' : 'GET', from);
  await measure(round, 'resumable-stream', [app.child.pid, redis.pid], read);
  app.child.kill();
  redis.kill();
}

async function runEncke(round, data) {
  const encke = await Encke.start({ data });
  const app = await startApp('encke', encke.url);
  const read = async (answer, { begins, from }) => {
    if (begins) await fetch(`${app.url}/${answer}`, { method: 'POST' });
    return tokensOf(`${encke.url}/v1/stream/${answer}?offset=${from.offset ?? -1}&live=sse`, 'GET', from);
  };
  await measure(round, 'encke', [app.child.pid, encke.pid], read);
  app.child.kill();
  await encke.kill();
}

async function startApp(kind, behind) {
  const own = fileURLToPath(import.meta.url);
  const args = [own, '--app', kind, '--behind', behind, '--seconds', options.seconds];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  endWithUs(child);
  const [line] = await once(child.stdout.setEncoding('utf8'), 'data');
  return { child, url: line.trim() };
}

/** The tokens of a response, as they come: of text, or of events whose data lines are text. */
async function* tokensOf(url, method, from) {
  const aborted = new AbortController();
  const response = await fetch(url, { method, signal: aborted.signal });
  const isEvents = response.headers.get('content-type')?.includes('event-stream');
  let rest = '';
  let cut = '';
  try {
    for await (const text of response.body?.pipeThrough(new TextDecoderStream()) ?? []) {
      rest += text;
      const lines = isEvents ? rest.split('\n') : [rest];
      rest = isEvents ? lines.pop() : '';
      for (const line of lines) {
        if (isEvents && line.startsWith('data:{')) {
          const control = JSON.parse(line.slice(5));
          from.offset = control.streamNextOffset ?? from.offset;
          if (control.streamClosed) return;
          yield PLACE;
          continue;
        }
        if (isEvents && !line.startsWith('data:')) continue;
        const words = (cut + (isEvents ? line.slice(5) : line)).split(' ');
        cut = words.pop();
        for (const word of words) {
          from.characters += word.length + 1;
          yield word;
        }
      }
      if (!isEvents && cut === '') yield PLACE;
    }
  } finally {
    aborted.abort();
  }
}

async function measure(round, name, processes, read) {
  const ages = [];
  const wrong = { missing: 0, twice: 0 };
  const follow = async (answer, { begins = false, delay = 0, cutAt }) => {
    await sleep(delay);
    const seen = new Uint8Array(TOKENS);
    const from = { characters: 0 };
    for (let part = 0; part < (cutAt ? 2 : 1); part += 1) {
      let count = 0;
      for await (const word of await read(answer, { begins: begins && part === 0, from })) {
        if (word === PLACE) {
          if (part === 0 && cutAt && count >= cutAt) break;
          continue;
        }
        const [number, made] = word.split('@').map(Number);
        seen[number] += 1;
        count += 1;
        // What a reader catches up with is old.
        if (delay === 0 && part === 0) ages.push(Date.now() - made);
      }
    }
    wrong.missing += seen.filter((times) => times === 0).length;
    wrong.twice += seen.filter((times) => times > 1).length;
  };
  const before = processes.map(cpuSeconds);
  const readers = [];
  for (let number = 0; number < ANSWERS; number += 1) {
    const answer = `${name}-${round}-${number}`;
    readers.push(follow(answer, { begins: true }));
    readers.push(follow(answer, { delay: (TOKENS / TOKENS_PER_SECOND) * 500 }));
    readers.push(sleep(200).then(() => follow(answer, { cutAt: TOKENS / 2 })));
    await sleep(1000 / TOKENS_PER_SECOND / 4);
  }
  await Promise.all(readers);
  const used = processes.map((process, at) => cpuSeconds(process) - before[at]);
  ages.sort((a, b) => a - b);
  const age = (share) => ages[Math.floor((ages.length - 1) * share)];
  const delivered = ANSWERS * TOKENS * 3;
  const each = used.map((seconds) => ((seconds / delivered) * 1e6).toFixed(1));
  console.log(
    `round ${round}, ${name}: ${ANSWERS} answers, ${delivered} deliveries, ${wrong.missing} missing, ${wrong.twice} twice; ` +
      `age p50 ${age(0.5)} ms, p99 ${age(0.99)} ms; processor time for each: application ${each[0]} µs, behind it ${each[1]} µs`,
  );
}

/** The processor time of a process so far, in seconds. */
function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}
