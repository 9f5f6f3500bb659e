// Jobs and workers, in Node: results, refusals, time that is extended, a stop that loses nothing, and kill -9.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { runInNewContext } from 'node:vm';
import { EnckeError, Pool, RetryLater } from '@encke/client/jobs';
import { waitFor } from '../../../tests/web/wait.mjs';
import { HTML, NEVER, withScripted, reportedErrors } from './scripted.mjs';
import { numbers, Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };

let server;

before(async () => {
  server = await Server.start();
});
const workers = [];
after(async () => {
  await Promise.allSettled(workers.map((worker) => worker.stop()));
  await server?.end();
});

/** A worker, which ends with the tests. */
function work(pool, ...options) {
  const worker = pool.worker(...options);
  workers.push(worker);
  return worker;
}

test('a job that may have been posted is not posted again, and the error says so', TIMEOUT, async () => {
  const problem = (status, code, headers) => ({ status, headers, body: JSON.stringify({ error: { code, message: 'x' } }) });
  const uncertain = ['internal', 'log_failed', 'no_dispatcher', 'unconfirmed'].map((code) => [problem(code === 'internal' ? 500 : 503, code), true]);
  const answers = [...uncertain, [{ status: 503, body: 'bad gateway' }, true], [HTML, true], [{ status: 404 }, true], [problem(404, 'unknown_pool'), false]];
  for (const [answer, mayBeDone] of answers) {
    await withScripted(() => answer, async ({ url, requests }) => {
      await assert.rejects(new Pool('p', { base: url }).post('x'), { status: answer.status, mayBeDone });
      assert.equal(requests.length, 1);
    });
  }
  const posted = { status: 202, headers: { 'Job-Id': '1' }, body: '{"job":1,"token":"t"}' };
  const refused = [problem(503, 'unconfirmed', { 'Retry-After': '1' }), problem(503, 'pool_full'), { status: 429 }, posted];
  await withScripted((_, number) => refused[number - 1], async ({ url, requests }) => {
    assert.equal((await new Pool('p', { base: url }).post('x')).job, 1);
    assert.equal(requests.length, 4);
  });
});

async function create(name, settings) {
  const pool = new Pool(name, { base: server.url });
  assert.equal(await pool.create({ type: 'claim', retry_ms: 0, ...settings }), true);
  assert.equal(await pool.create({ type: 'claim', retry_ms: 0, ...settings }), false);
  return pool;
}

test('jobs of JSON, text and bytes come back as results', TIMEOUT, async () => {
  const pool = await create('kinds');
  const worker = work(pool, 'ann', ({ data }) => data);
  for (const data of [{ text: 'Grüße' }, 'Grüße', Uint8Array.of(0, 255, 128)]) {
    const job = await pool.post(data);
    assert.deepEqual(await pool.wait(job), data);
    assert.equal((await pool.result(job)).state, 'done');
  }
  assert.equal(await pool.wait(await pool.post(null)), null);
  await worker.stop();
  // A worker that polls stays registered for 10 seconds.
  const refusal = () => pool.post('nobody', { ifConnected: true, signal: AbortSignal.timeout(60_000) }).then(() => undefined, (error) => error);
  let refused;
  await waitFor('nobody is connected', async () => (refused = await refusal()));
  assert.deepEqual([refused.status, refused.code], [503, 'nobody_connected']);
  await assert.rejects(new Pool('missing', { base: server.url }).post(1), { status: 404, code: 'unknown_pool' });
});

test('the content type decides what a job and a result are', TIMEOUT, async () => {
  const pool = await create('types');
  const jobs = [];
  const worker = work(pool, 'ann', ({ type, data }) => {
    jobs.push(data);
    return type === 'image/gif' ? new Blob([data], { type }) : data;
  });
  const foreign = (code) => runInNewContext(code);
  const utf8 = Uint8Array.of(65, 66);
  for (const [posted, contentType, expected] of [
    [utf8, undefined, utf8],
    [Uint8Array.of(255, 254), undefined, Uint8Array.of(255, 254)],
    [new Uint8Array(0), undefined, new Uint8Array(0)],
    [utf8, 'text/plain', 'AB'],
    [utf8, 'Text/HTML; charset=utf-8', 'AB'],
    ['AB', 'image/gif', utf8],
    ['\ufeffA', undefined, '\ufeffA'],
    ['\u0001'.repeat(70_000), undefined, '\u0001'.repeat(70_000)],
    ['[1]', 'application/json', '[1]'],
    [new TextEncoder().encode('{"a":[1]}'), 'application/json', { a: [1] }],
    [new TextEncoder().encode('{no'), 'application/json', '{no'],
    [Uint8Array.of(255, 254), 'text/plain', Uint8Array.of(255, 254)],
    [Uint8Array.of(255, 254), 'application/json', Uint8Array.of(255, 254)],
    ['', undefined, ''],
    [undefined, undefined, null],
    [foreign('new Uint8Array([65, 66])'), undefined, utf8],
    [foreign('new DataView(new Uint8Array([64, 65, 66]).buffer, 1)'), undefined, utf8],
    [foreign('new Uint8Array([65, 66]).buffer'), undefined, utf8],
    [new Blob(['AB']), undefined, utf8],
    [new Blob(['AB'], { type: 'text/plain' }), undefined, 'AB'],
  ]) {
    assert.deepEqual(await pool.wait(await pool.post(posted, { contentType })), expected);
    assert.deepEqual(jobs.pop(), expected);
  }
  await worker.stop();
});

test('a job is the data of its call, and what no content can carry is refused', TIMEOUT, async () => {
  const pool = await create('copies');
  const buffer = Uint8Array.of(1, 1);
  const posted = pool.post(buffer);
  buffer.fill(2);
  const results = [new Map([[1, 2]]), { deep: [Uint8Array.of(1)] }, () => 1, { deep: Buffer.of(1) }, new URLSearchParams('a=1'), new Error('lost'), new ReadableStream()];
  const worker = work(pool, 'ann', ({ data }) => (data instanceof Uint8Array ? data : results[data]));
  assert.deepEqual(await pool.wait(await posted), Uint8Array.of(1, 1));
  const refused = await create('refused-results', { attempts: 1 });
  const other = work(refused, 'ann', ({ data }) => results[data]);
  for (const [index, result] of results.entries()) {
    await assert.rejects(pool.post(result), TypeError);
    await assert.rejects(refused.wait(await refused.post(index)), /JSON has no (Map|Uint8Array|Function|URLSearchParams|Error|ReadableStream)/);
  }
  await assert.rejects(pool.post({ a: 1 }, { contentType: 'image/png' }), /image\/png is a string, bytes or a Blob, not Object/);
  await Promise.all([worker, other].map((worker) => worker.stop()));
});

test('a worker polls at a bounded rate a server that does not wait', TIMEOUT, async () => {
  const pool = await create('no-wait');
  const polls = [];
  const worker = work(pool, 'ann', () => {}, { wait: 0 });
  const { fetch } = globalThis;
  globalThis.fetch = (url, init) => {
    if (String(url).includes('/no-wait/work')) polls.push(performance.now());
    return fetch(url, init);
  };
  try {
    await waitFor('some polls', () => polls.length >= 3);
  } finally {
    globalThis.fetch = fetch;
  }
  await worker.stop();
  assert.ok(polls[2] - polls[0] > 1_900, `3 polls in ${polls[2] - polls[0]} ms`);
});

test('a handler that throws refuses its attempt, and the last one makes the job dead', TIMEOUT, async () => {
  const pool = await create('refusing', { attempts: 2 });
  const attempts = [];
  const worker = work(pool, 'ann', ({ attempt }) => {
    attempts.push(attempt);
    if (attempt === 1) throw new RetryLater('not yet', 1);
    throw new Error('this is no image');
  });
  await assert.rejects(pool.wait(await pool.post('x')), (error) => error instanceof EnckeError && error.code === 'job_failed' && /this is no image/.test(error.message));
  assert.deepEqual(attempts, [1, 2]);
  await worker.stop();
});

test('the time of an attempt is extended while its handler runs', TIMEOUT, async () => {
  const pool = await create('long', { ack_ms: 3_000 });
  const posted = await pool.post('x');
  const worker = work(pool, 'ann', async (job) => {
    const first = (await pool.result(posted)).deadline_ms;
    await waitFor('the time is extended', async () => (await pool.result(posted)).deadline_ms > first + 10_000);
    assert.equal(job.signal.aborted, false);
    return job.attempt;
  });
  assert.equal(await pool.wait(posted), 1);
  await worker.stop();
});

test('a worker learns that it has lost its attempt', TIMEOUT, async () => {
  const pool = await create('lost', { ack_ms: 3_000 });
  const errors = [];
  const worker = work(pool, 'ann', async (job) => {
    if (job.attempt === 1) {
      // Another client reports on the attempt.
      await server.request('POST', `/v1/pool/lost/job/${job.job}/refuse?attempt=1`);
      await new Promise((resolve) => job.signal.addEventListener('abort', resolve));
    }
    return job.attempt;
  }, { onError: (error) => errors.push(error.code) });
  assert.equal(await pool.wait(await pool.post('x')), 2);
  await worker.stop();
  assert.deepEqual(errors, ['attempt_over']);
});

test('a stop lets the jobs that run end, and takes no other', TIMEOUT, async () => {
  const pool = await create('stopping', { type: 'round_robin' });
  let go;
  const goes = new Promise((resolve) => (go = resolve));
  let running = 0;
  const worker = work(pool, 'ann', async () => {
    running += 1;
    await goes;
    return 'done';
  }, { concurrency: 2 });
  const jobs = [await pool.post(1), await pool.post(2), await pool.post(3)];
  await waitFor('two jobs run', () => running === 2);
  const stopped = worker.stop();
  go();
  await stopped;
  const states = await Promise.all(jobs.map(async (job) => (await pool.result(job)).state));
  assert.deepEqual(states, ['done', 'done', 'waiting']);
  // One that waits for a job stops at once.
  const idle = work(await create('idle'), 'ann', () => {});
  await waitFor('it is registered', async () => JSON.parse((await server.request('GET', '/v1/pool/idle')).body).workers.length === 1);
  await idle.stop();
});

test('a job that is on its way when its worker is stopped is done', TIMEOUT, async () => {
  const JOB = { status: 200, headers: { 'Content-Type': 'text/plain', 'Job-Id': '1', 'Job-Attempt': '1', 'Job-Token': 't', 'Job-Deadline': String(Date.now() + 60_000) }, body: 'x' };
  let giveJob;
  const given = new Promise((resolve) => (giveJob = resolve));
  const answer = ({ url }, number) => {
    if (url.includes('/ack')) return { status: 204 };
    // The poll that asks for the release comes while the response to the first one is under way.
    if (number > 1) giveJob(JOB);
    return number > 1 ? { status: 204 } : given;
  };
  await withScripted(answer, async ({ url, requests }) => {
    const worker = work(new Pool('p', { base: url }), 'ann', () => 'done', { wait: 60 });
    await waitFor('the poll', () => requests.length === 1);
    await worker.stop();
    assert.deepEqual(requests.map((request) => request.url.replace(/\?.*/, '')), ['/v1/pool/p/work', '/v1/pool/p/work', '/v1/pool/p/job/1/ack']);
    assert.match(requests[1].url, /wait=0/);
  });
  // A server that is away, and one that answers no second poll, hold up no stop.
  for (const refused of [{ cuts: true }, { status: 409 }]) {
    await withScripted((_, number) => (number === 1 ? NEVER : refused), async ({ url, requests }) => {
      const worker = work(new Pool('p', { base: url }), 'ann', () => {}, { wait: 60 });
      await waitFor('the poll', () => requests.length === 1);
      await worker.stop();
      assert.equal(requests.length, 2);
    });
  }
});

test('stops lose no job of a pool with one attempt', TIMEOUT, async () => {
  const pool = await create('stop-race', { attempts: 1 });
  const jobs = [];
  let runs = 0;
  for (const round of numbers(100)) {
    const worker = work(pool, 'ann', () => (runs += 1));
    await waitFor('it polls', async () => JSON.parse((await server.request('GET', '/v1/pool/stop-race')).body).workers.length === 1);
    const posted = pool.post(round);
    // The job is given out while the worker stops, or just before.
    await Promise.resolve(round % 2 ? undefined : new Promise(setImmediate));
    await worker.stop();
    jobs.push(await posted);
  }
  const last = work(pool, 'ann', () => (runs += 1));
  await Promise.all(jobs.map((job) => pool.wait(job)));
  await last.stop();
  assert.equal(runs, jobs.length);
});

test('a response that stalls in its body ends, and the worker polls again', TIMEOUT, async (t) => {
  const headers = { 'Content-Type': 'text/plain', 'Content-Length': '10', 'Job-Id': '1', 'Job-Attempt': '1', 'Job-Token': 't' };
  const bounds = [];
  const { setTimeout } = globalThis;
  t.mock.method(globalThis, 'setTimeout', (callback, ms) => {
    // The bound of a part of the body comes soon.
    if (ms === 15_000) bounds.push(ms);
    return setTimeout(callback, ms === 15_000 ? 200 : ms);
  });
  const errors = [];
  await withScripted((_, number) => (number === 1 ? { headers, body: 'part', stays: true } : { status: 204 }), async ({ url, requests }) => {
    const worker = work(new Pool('p', { base: url }), 'ann', () => {}, { onError: (error) => errors.push(error.name) });
    await waitFor('the next poll', () => requests.length >= 2);
    await worker.stop();
  });
  assert.ok(bounds.length >= 2, 'the body has a bound, which begins again with each part');
  assert.deepEqual(errors, ['AbortError']);
});

test('a result that the server refuses by its size fails the attempt with the reason', TIMEOUT, async () => {
  const pool = await create('large-results', { attempts: 1 });
  const errors = [];
  const worker = work(pool, 'ann', () => 'x'.repeat(17 * 2 ** 20), { onError: (error) => errors.push(error.status || error.code) });
  const posted = await pool.post('x');
  await assert.rejects(pool.wait(posted), (error) => error.code === 'job_failed' && !/time/.test(error.message));
  await worker.stop();
  assert.equal(errors.length, 1);
  assert.match(String(errors[0]), /413|upload_failed/);
});

test('an error of `onError` is reported, and the worker continues', TIMEOUT, async (t) => {
  const reports = reportedErrors(t);
  const pool = await create('mistakes');
  const worker = work(pool, 'ann', ({ data, attempt, job }) => {
    if (data !== 'lost' || attempt > 1) return data;
    // Another client reports on the attempt.
    return server.request('POST', `/v1/pool/mistakes/job/${job}/refuse?attempt=1`).then(() => 'late');
  }, {
    onError: () => {
      throw new Error('a mistake of the caller');
    },
  });
  for (const data of ['lost', 'next']) assert.equal(await pool.wait(await pool.post(data)), data);
  await worker.stop();
  assert.deepEqual(reports, ['a mistake of the caller']);
});

test('every job has its result over kill -9 and SIGTERM', TIMEOUT, async () => {
  const pool = await create('cuts', { type: 'round_robin', attempts: 10, ack_ms: 3_000 });
  const both = ['ann', 'ben'].map((name) => work(pool, name, ({ data }) => data * 2, { concurrency: 2, wait: 5 }));
  const jobs = [];
  for (const how of ['kill', 'stop']) {
    for (let count = 0; count < 15; count += 1) jobs.push(await pool.post(jobs.length));
    await server.restart(how);
  }
  const results = await Promise.all(jobs.map((job) => pool.wait(job)));
  assert.deepEqual(results, numbers(jobs.length).map((number) => number * 2));
  await Promise.all(both.map((worker) => worker.stop()));
});

test('a name is one worker', TIMEOUT, async () => {
  const pool = await create('names');
  const errors = [];
  const first = work(pool, 'ann', () => 1, { onError: (error) => errors.push(error.code) });
  const isReplaced = assert.rejects(first.stopped, { status: 409, code: 'worker_replaced' });
  await waitFor('it is registered', async () => JSON.parse((await server.request('GET', '/v1/pool/names')).body).workers.length === 1);
  const second = work(pool, 'ann', () => 2);
  await isReplaced;
  assert.deepEqual(errors, ['worker_replaced']);
  assert.equal(await pool.wait(await pool.post('x')), 2);
  await second.stop();
});
