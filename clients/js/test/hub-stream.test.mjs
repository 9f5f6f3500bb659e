// A stream that tabs follow by one subscription, with a channel that is the test: tabs that the server refuses, tabs that come again, and bounds.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { waitFor } from '../../../tests/web/wait.mjs';
import { HubStream, RECENT_CHARS_MAX } from '../dist/hub-stream.js';

/** A stream of a hub, and what the test gives it. `refusals` has the offsets that the server refuses. */
function open(refusals = []) {
  const posts = [];
  const subscriptions = [];
  let isOver = false;
  const channel = {
    subscribe(options) {
      const isRefused = refusals.includes(options.from);
      const refusal = Object.assign(new Error('no such offset'), { status: 400, code: 'bad_offset' });
      const settled = () => (isRefused ? Promise.reject(refusal) : Promise.resolve(options.from === 'now' ? '5' : options.from));
      const subscription = { ...options, begun: settled(), closed: isRefused ? settled() : new Promise(() => {}), close: () => (subscription.isClosed = true) };
      subscription.begun.catch(() => {});
      subscriptions.push(subscription);
      return subscription;
    },
  };
  const stream = new HubStream('a', { channel: () => channel, post: (message) => posts.push(message), onRefused: () => (isOver = true) });
  const add = (tab, want) => stream.add(`${tab}/1`, { type: 'want', tab, id: 1, stream: 'a', ...want });
  const posted = async (type, count) => {
    const some = () => posts.filter((message) => message.type === type);
    await waitFor(`${count} messages ${type}`, () => some().length >= count);
    return some();
  };
  return { stream, add, posted, subscriptions, isOver: () => isOver };
}

test('a tab whose offset the server refuses ends alone', async () => {
  for (const refused of ['garbage', '2']) {
    const { add, posted, subscriptions, isOver } = open([refused]);
    add('A', { from: 'now' });
    await posted('begin', 1);
    add('B', { from: refused });
    assert.deepEqual(await posted('refused', 1), [{ type: 'refused', to: { tab: 'B', id: 1 }, stream: 'a', status: 400, code: 'bad_offset', message: 'no such offset' }]);
    await waitFor('it continues for the other tab', () => subscriptions.length === 3);
    assert.deepEqual(subscriptions.map(({ from }) => from), ['now', refused, '5']);
    assert.equal(isOver(), false);
    await new Promise(setImmediate);
    subscriptions[2].onRecord({ stream: 'a', nextOffset: '6', messages: [1] });
    assert.equal((await posted('record', 1))[0].to, undefined);
    add('C', { offset: '5' });
    assert.equal((await posted('record', 2))[1].to.tab, 'C');
  }
});

test('the only tab that the server refuses leaves no stream', async () => {
  const { add, posted, isOver } = open(['garbage']);
  add('B', { from: 'garbage' });
  await posted('refused', 1);
  assert.equal(isOver(), true);
});

test('a tab that wants a subscription again is admitted again', async () => {
  const { add, posted, subscriptions } = open();
  add('A', { from: '0' });
  await posted('begin', 1);
  for (const nextOffset of ['1', '2']) subscriptions[0].onRecord({ stream: 'a', nextOffset, messages: [1] });
  add('A', { from: '0', offset: '1' });
  assert.equal((await posted('begin', 2))[1].offset, '1');
  assert.deepEqual((await posted('record', 3)).map(({ to, record }) => [to?.tab, record.nextOffset]), [[undefined, '1'], [undefined, '2'], ['A', '2']]);
});

test('what a hub keeps for later tabs is bounded by its characters', async () => {
  const { add, posted, subscriptions } = open();
  add('A', { from: '-1' });
  await posted('begin', 1);
  const messages = ['x'.repeat(RECENT_CHARS_MAX / 4)];
  for (const nextOffset of ['1', '2', '3', '4', '5']) subscriptions[0].onRecord({ stream: 'a', nextOffset, messages });
  // Three have a place.
  add('B', { offset: '2' });
  const sent = (await posted('record', 8)).filter(({ to }) => to).map(({ record }) => record.nextOffset);
  assert.deepEqual(sent, ['3', '4', '5']);
  assert.equal(subscriptions.length, 1);
  add('C', { offset: '1' });
  await waitFor('the records before are read', () => subscriptions.length === 2);
  assert.equal(subscriptions[1].from, '1');
});
