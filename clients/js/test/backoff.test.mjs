// Delays between attempts: each is bounded, can be ended by a signal, and leaves no listener behind.

import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { mock, test } from 'node:test';
import { EnckeError } from '@encke/client';
import { abortable } from '../dist/abortable.js';
import { Backoff, SERVER_DELAY_MS_MAX, sleep } from '../dist/backoff.js';
import { randomId } from '../dist/random-id.js';

/** The time of the timer that a wait begins, which is then ended. */
async function delayOf(serverMs) {
  const controller = new AbortController();
  const timers = mock.method(globalThis, 'setTimeout');
  const waits = new Backoff().wait(controller.signal, serverMs);
  timers.mock.restore();
  controller.abort();
  await assert.rejects(waits, { name: 'AbortError' });
  assert.equal(timers.mock.callCount(), 1);
  return timers.mock.calls[0].arguments[1];
}

test('a delay that a server asks for is bounded, and one without sense is left out', async () => {
  for (const ms of [2_592_000_000, 1e12, 2 ** 31, Number.MAX_VALUE]) assert.equal(await delayOf(ms), SERVER_DELAY_MS_MAX);
  for (const ms of [undefined, 0, -5_000, Number.NaN, Infinity, -Infinity]) {
    const delay = await delayOf(ms);
    assert.ok(delay >= 125 && delay <= 250, `${ms}: the first wait of the client, not ${delay}`);
  }
  const delay = await delayOf(1_000);
  assert.ok(delay >= 1_000 && delay <= 1_500, `as the server asked: ${delay}`);
  assert.equal(await delayOf(1), 250, 'no request after request');
});

test('Retry-After is a number of seconds or a date, by the clock of the server', async () => {
  const retryAfterOf = async (value, date) => {
    const headers = { 'Retry-After': value, ...(date && { Date: date }) };
    return (await EnckeError.fromResponse(new Response('', { status: 503, headers }))).retryAfter;
  };
  assert.equal(await retryAfterOf('7'), 7);
  assert.equal(await retryAfterOf('Wed, 01 Jan 2020 00:01:00 GMT', 'Wed, 01 Jan 2020 00:00:00 GMT'), 60);
  for (const none of ['Infinity', '-5', 'NaN', 'soon', '', 'Wed, 01 Jan 2020 00:01:00 GMT']) assert.equal(await retryAfterOf(none), undefined, none);
});

test('a sleep of more time than timers have does not end at once', async () => {
  const controller = new AbortController();
  const timers = mock.method(globalThis, 'setTimeout');
  const sleeps = sleep(2 ** 40, controller.signal);
  timers.mock.restore();
  assert.equal(timers.mock.calls[0].arguments[1], 2 ** 31 - 1);
  controller.abort();
  await assert.rejects(sleeps, { name: 'AbortError' });
});

test('a wait ends with its signal, and leaves no listener at a signal that lives long', async () => {
  const { signal } = new AbortController();
  assert.equal(await abortable(Promise.resolve(1), signal), 1);
  await assert.rejects(abortable(Promise.reject(new Error('mine')), signal), /mine/);
  await sleep(0, signal);
  assert.deepEqual(getEventListeners(signal, 'abort'), []);
  const forever = new Promise(() => {});
  await assert.rejects(abortable(forever, AbortSignal.abort(new Error('over'))), /over/);
  const controller = new AbortController();
  const waits = abortable(forever, controller.signal);
  controller.abort(new Error('over'));
  await assert.rejects(waits, /over/);
  // The rejection of work that outlives its wait is handled.
  await assert.rejects(abortable(Promise.reject(new Error('late')), AbortSignal.abort(new Error('over'))), /over/);
});

test('ids differ, and need no secure context', () => {
  const ids = new Set(Array.from({ length: 1_000 }, randomId));
  assert.equal(ids.size, 1_000);
  for (const id of ids) assert.match(id, /^[0-9a-f]{32}$/);
});
