// Each call that waits for something foreign ends with its signal: for earlier appends, for a token, for a response, for a record.

import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { test } from 'node:test';
import { Client, subscribe } from '@encke/client';
import { waitFor } from '../../../tests/web/wait.mjs';
import { APPENDED, CREATED, NEVER, withScripted } from './scripted.mjs';

const TIMEOUT = { timeout: 60_000 };
const QUIET = { headers: { 'Content-Type': 'text/event-stream' }, body: ': quiet\n\n', stays: true };

/** A signal that is aborted once the calls behind it wait. */
function aborting() {
  const controller = new AbortController();
  setImmediate(() => controller.abort(new Error('given up')));
  return controller.signal;
}

test('calls behind an unanswered publish end with their own signals, and send nothing', TIMEOUT, async () => {
  let answer;
  await withScripted(() => new Promise((resolve) => (answer ??= resolve)), async ({ url, requests }) => {
    const client = new Client({ base: url });
    const first = client.publish('s', 1);
    await waitFor('the first publish is sent', () => requests.length === 1);
    await assert.rejects(client.publish('s', 2, { signal: aborting() }), /given up/);
    await assert.rejects(client.publish('s', 2, { signal: AbortSignal.abort(new Error('aborted before')) }), /aborted before/);
    await assert.rejects(client.publish('s', 2, { signal: AbortSignal.timeout(1) }), { name: 'TimeoutError' });
    await assert.rejects(client.close('s', 'done', { signal: aborting() }), /given up/);
    await assert.rejects(client.close('s', 'done', { signal: aborting(), data: 1 }), /given up/);
    // The next one does not overtake the first, and has the number behind it.
    const last = client.publish('s', 3, { signal: aborting() });
    await assert.rejects(last, /given up/);
    assert.equal(requests.length, 1);
    answer(APPENDED);
    await first;
  });
});

test('a publish behind one that was given up in the queue keeps its order and its number', TIMEOUT, async () => {
  const answers = [];
  await withScripted(() => new Promise((resolve) => answers.push(resolve)), async ({ url, requests }) => {
    const client = new Client({ base: url });
    const first = client.publish('s', 1);
    const second = client.publish('s', 2, { signal: AbortSignal.abort() });
    const third = client.publish('s', 3);
    await assert.rejects(second, { name: 'AbortError' });
    await waitFor('the first publish is sent', () => requests.length === 1);
    answers[0](APPENDED);
    await first;
    await waitFor('the third publish is sent', () => requests.length === 2);
    answers[1](APPENDED);
    await third;
    assert.deepEqual(requests.map(({ text, headers }) => [text, headers['producer-seq'], headers['producer-epoch']]), [['1', '0', '0'], ['3', '1', '0']]);
  });
});

test('a token or a fetch that never settles holds no call whose signal is aborted, and nothing is sent later', TIMEOUT, async () => {
  for (const hangs of [{ token: () => NEVER }, { fetch: () => NEVER }]) {
    const client = new Client({ base: 'http://127.0.0.1:9', ...hangs });
    const calls = [
      () => client.create('s', { signal: aborting() }),
      () => client.publish('s', 1, { signal: aborting() }),
      () => client.close('s', 'done', { signal: aborting() }),
      () => client.stop('s', { signal: aborting() }),
    ];
    for (const call of calls) await assert.rejects(call(), /given up/);
  }
  await withScripted(() => CREATED, async ({ url, requests }) => {
    let give;
    const client = new Client({ base: url, token: () => new Promise((resolve) => (give ??= resolve)) });
    await assert.rejects(client.create('s', { signal: aborting() }), /given up/);
    give('late');
    await new Client({ base: url }).create('other');
    assert.deepEqual(requests.map(({ url }) => url), ['/v1/stream/other']);
  });
});

test('any number of calls and subscriptions wait with one signal, and Node warns of no leak', TIMEOUT, async () => {
  const warnings = [];
  const note = (warning) => warnings.push(warning.name);
  process.on('warning', note);
  const controller = new AbortController();
  const { signal } = controller;
  await withScripted(() => NEVER, async ({ url }) => {
    const client = new Client({ base: url });
    const calls = Array.from({ length: 30 }, (_, number) => client.publish('s', number, { signal }));
    const subscriptions = calls.map(() => subscribe({ base: url, stream: 's', signal }));
    assert.ok(getEventListeners(signal, 'abort').length <= 2, 'one of the calls, and one of fetch');
    controller.abort(new Error('given up'));
    for (const call of calls) await assert.rejects(call, /given up/);
    for (const { closed } of subscriptions) await closed;
    await new Promise(setImmediate);
  });
  process.off('warning', note);
  assert.deepEqual(warnings, []);
  assert.deepEqual(getEventListeners(signal, 'abort'), []);
});

test('a signal that lives long collects no listeners', TIMEOUT, async () => {
  const { signal } = new AbortController();
  await withScripted(({ method }) => (method === 'PUT' ? CREATED : APPENDED), async ({ url }) => {
    // The global function itself removes its listeners when the request is collected.
    const options = { base: url, token: async () => 'token', fetch: (url, init) => fetch(url, { ...init, signal: undefined }) };
    for (let number = 0; number < 20; number += 1) {
      const client = new Client(options);
      await client.create('s', { signal });
      await client.publish('s', number, { signal });
    }
  });
  assert.deepEqual(getEventListeners(signal, 'abort'), []);
});
