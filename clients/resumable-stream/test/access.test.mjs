// A server with access control: which actions a token needs, and tokens that have ended.

import assert from 'node:assert/strict';
import { appendFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { createResumableStreamContext } from '@encke/resumable-stream';
import { createPubSub } from '@encke/resumable-stream/pubsub';
import generic from 'resumable-stream/generic';
import { Server } from '../../js/test/server.mjs';
import { guarded, token } from '../../js/test/token.mjs';
import { textOf, untilAcknowledged } from './answers.mjs';

const TIMEOUT = { timeout: 60_000 };
const GRANTS = 'grants = [{ actions = ["create", "read", "append", "delete"], paths = ["/v1/stream/resumable-stream/**", "/v1/stream/pubsub/**"] }]\n';

let server;

before(async () => {
  server = await Server.start((folder) => {
    const options = guarded(folder);
    appendFileSync(options.args[1], GRANTS);
    return options;
  });
});
after(() => server?.end());

/** A function that returns a token that has ended, and then good ones. */
function ending() {
  let asked = 0;
  return async () => token(asked++ ? 600 : -60);
}

const make = () => ReadableStream.from(['Hello', ' world']);

test('answers in streams', TIMEOUT, async () => {
  const context = createResumableStreamContext({ base: server.url, token: ending(), replaysDone: true });
  for (let time = 0; time < 2; time += 1) assert.equal(await textOf(await context.createNewResumableStream('a', make)), 'Hello world');
  assert.equal(await textOf(await context.resumeExistingStream('a', 5)), ' world');
  const open = await context.resumableStream('open', () => new ReadableStream());
  assert.equal(await context.stop('open'), true);
  await open.cancel();
  await assert.rejects(createResumableStreamContext({ base: server.url, token: token(-60) }).hasExistingStream('a'), { status: 401 });
});

test('the package over `createPubSub`', TIMEOUT, async () => {
  const context = generic.createResumableStreamContext({ waitUntil: null, ...createPubSub({ base: server.url, token: ending() }) });
  let model;
  const first = await context.resumableStream('a', () => new ReadableStream({ start: (controller) => void (model = controller) }));
  model.enqueue('Hello');
  const second = await untilAcknowledged(() => context.resumeExistingStream('a'));
  model.close();
  for (const stream of [first, second]) assert.equal(await textOf(stream), 'Hello');
  await assert.rejects(createPubSub({ base: server.url }).publisher.incr('a'), { status: 401 });
});
