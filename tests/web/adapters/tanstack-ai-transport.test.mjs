// @durable-streams/tanstack-ai-transport: a chat of TanStack AI in a stream of Encke, in both of its forms: a stream for each answer, which ends
// with it, and a stream for a whole session, which stays open.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  durableStreamConnection,
  materializeSnapshotFromDurableStream,
  toDurableChatSessionResponse,
  toDurableStreamResponse,
} from '@durable-streams/tanstack-ai-transport';
import { waitFor } from '../wait.mjs';
import { Answer, Reader, TOKENS } from './answer.mjs';
import { isPending } from './requests.mjs';
import { Server, readAll } from './server.mjs';

const SEND_URL = 'http://app.example/api/chat';
const CHUNKS = [
  { type: 'TEXT_MESSAGE_START', messageId: 'answer', role: 'assistant' },
  ...TOKENS.map((delta) => ({ type: 'TEXT_MESSAGE_CONTENT', messageId: 'answer', delta })),
  { type: 'TEXT_MESSAGE_END', messageId: 'answer' },
];
const QUESTION = { id: 'question', role: 'user', parts: [{ type: 'text', content: 'Say something.' }] };
const NAME = 'chat/ann/answer';
const OWN = ['/v1/stream/chat/{sub}/**'];
const EVERYTHING = ['/v1/stream/**'];

const message = (id, role, content) => ({ id, role, parts: [{ type: 'text', content }] });

/** How a page is allowed to read. */
const MODES = ['without access control', 'with a token', 'with a read URL'];

/** A stream for the chat of one user: `target` is where the application writes, `source` where its pages read. */
async function chatStream(server, mode) {
  const url = server.stream(NAME);
  if (mode === 'without access control') return { url, target: { writeUrl: url }, source: { readUrl: url } };
  const headers = await server.bearer('ann', { create: OWN, append: OWN, read: OWN });
  const target = { writeUrl: url, headers };
  if (mode === 'with a token') return { url, target, source: { readUrl: url, headers: await server.bearer('ann', { read: OWN }) } };
  const fields = { 'Content-Type': 'application/json', 'Encke-Owner': 'self', 'Encke-Read-URL': '600' };
  const response = await fetch(url, { method: 'PUT', headers: { ...headers, ...fields } });
  assert.equal(response.status, 201);
  return { url, target, source: { readUrl: response.headers.get('Encke-Read-URL') } };
}

const connect = (source, options = {}) => durableStreamConnection({ sendUrl: SEND_URL, emitSnapshotOnSubscribe: false, ...source, ...options });

/** Begins to write an answer; `written()` waits until it is complete and the stream is closed. */
async function write(target, answer) {
  const writers = [];
  await toDurableStreamResponse(answer, { stream: target, waitUntil: (writer) => writers.push(writer) });
  return { written: () => Promise.all(writers) };
}

/**
 * Says what is left. The end comes when all pages have the last chunk: a subscription of version 0.0.9 may lose what comes with the end of the
 * stream, at every server, because the package looks at the end first.
 */
async function finish(answer, pages, target) {
  answer.say(CHUNKS.length);
  for (const page of pages) await page.has(CHUNKS.length);
  answer.finish();
  for (const page of pages) assert.deepEqual(await page.all(), CHUNKS);
  await target.written();
}

/** Says two tokens, and waits until the event streams of pages are open: only there can the second token come. */
async function sayLive(answer, pages) {
  answer.say(2);
  for (const page of pages) await page.has(2);
  answer.say();
  for (const page of pages) await page.has(3);
}

for (const mode of MODES) {
  const access = mode !== 'without access control';

  test(`two pages read an answer live, a third one resumes in the middle, a fourth one joins late: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const { url, target, source } = await chatStream(server, mode);
    const answer = new Answer(CHUNKS);
    const writer = await write(target, answer);
    const pages = [new Reader(connect(source).subscribe()), new Reader(connect(source).subscribe())];
    for (let count = 1; count <= 4; count += 1) {
      answer.say();
      // Both have it before the next one is there.
      for (const page of pages) await page.has(count);
    }
    // A page that is loaded again has a snapshot of what was said, and continues behind it.
    const snapshot = await materializeSnapshotFromDurableStream(source);
    assert.deepEqual(snapshot.messages, [message('answer', 'assistant', TOKENS.slice(0, 3).join(''))]);
    const resumed = new Reader(connect(source, { initialOffset: snapshot.offset }).subscribe());
    answer.say();
    await resumed.has(1);
    answer.say(CHUNKS.length - 5);
    await resumed.has(CHUNKS.length - 4);
    await finish(answer, pages, writer);
    assert.deepEqual(await resumed.all(), CHUNKS.slice(4));
    const late = await materializeSnapshotFromDurableStream(source);
    assert.deepEqual(late.messages, [message('answer', 'assistant', TOKENS.join(''))]);
    const stored = await readAll(url, source.headers ?? target.headers);
    assert.equal(stored.headers.get('Stream-Closed'), 'true');
    assert.deepEqual(stored.values, CHUNKS);
  });

  test(`pages read on by themselves when the server is restarted in the middle of an answer: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const { target, source } = await chatStream(server, mode);
    const answer = new Answer(CHUNKS);
    const writer = await write(target, answer);
    const pages = [new Reader(connect(source).subscribe()), new Reader(connect(source).subscribe())];
    await sayLive(answer, pages);
    // These appends are under way when the server stops, or come when it has.
    answer.say(2);
    await server.stop();
    answer.say();
    await server.startAgain();
    for (const page of pages) await page.has(6);
    await finish(answer, pages, writer);
    const late = await materializeSnapshotFromDurableStream(source);
    assert.deepEqual(late.messages, [message('answer', 'assistant', TOKENS.join(''))]);
  });

  test(`a page that subscribes again after a crash of the server continues where it was: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const { url, target, source } = await chatStream(server, mode);
    const answer = new Answer(CHUNKS);
    const writer = await write(target, answer);
    const connection = connect(source);
    const cut = new Reader(connection.subscribe());
    await sayLive(answer, [cut]);
    // The package repeats an append whose response is lost, and then its chunk is there twice, at every server.
    await waitFor('every append is acknowledged', () => !isPending('POST', url));
    await server.kill();
    assert.equal((await cut.failure()).message, 'terminated');
    answer.say();
    await server.startAgain();
    const resumed = new Reader(connection.subscribe());
    answer.say(CHUNKS.length);
    await resumed.has(CHUNKS.length - 3);
    answer.finish();
    assert.deepEqual([...cut.chunks, ...(await resumed.all())], CHUNKS);
    await writer.written();
  });
}

for (const access of [false, true]) {
  test(`a session has the messages of all pages, and goes on after an answer and a restart: access control ${access}`, async (t) => {
    const server = await Server.start(t, { access });
    const { target: stream, source } = await chatStream(server, access ? 'with a token' : 'without access control');
    const nothing = new Answer([]);
    nothing.finish();
    const asked = await toDurableChatSessionResponse({ stream, newMessages: [QUESTION], responseStream: nothing, mode: 'await' });
    assert.equal(asked.status, 200);
    const left = new AbortController();
    const page = new Reader(connect(source, { emitSnapshotOnSubscribe: true }).subscribe(left.signal));
    await page.has(1);
    const snapshot = { type: 'MESSAGES_SNAPSHOT', messages: [message('question', 'user', 'Say something.')] };
    assert.deepEqual(page.chunks, [snapshot]);
    const answer = new Answer(CHUNKS);
    const written = toDurableChatSessionResponse({ stream, newMessages: [], responseStream: answer, mode: 'await' });
    answer.say(2);
    await page.has(3);
    await server.stop();
    await server.startAgain();
    answer.finish();
    await page.has(1 + CHUNKS.length);
    assert.deepEqual(page.chunks, [snapshot, ...CHUNKS]);
    await written;
    left.abort();
    await page.all();
    const late = await materializeSnapshotFromDurableStream(source);
    assert.deepEqual(late.messages, [...snapshot.messages, message('answer', 'assistant', TOKENS.join(''))]);
  });
}

test('with access control an answer is for its owner', async (t) => {
  const server = await Server.start(t, { access: true });
  const { url, target } = await chatStream(server, 'with a read URL');
  const answer = new Answer(CHUNKS);
  const writer = await write(target, answer);
  const bob = await server.bearer('bob', { create: EVERYTHING, append: EVERYTHING, read: EVERYTHING });
  assert.equal((await new Reader(connect({ readUrl: url, headers: bob }).subscribe()).failure()).status, 404);
  assert.equal((await new Reader(connect({ readUrl: url }).subscribe()).failure()).status, 401);
  await assert.rejects(toDurableStreamResponse(new Answer([]), { stream: { writeUrl: url, headers: bob } }), (error) => error.status === 403);
  answer.finish();
  await writer.written();
  assert.deepEqual((await readAll(url, target.headers)).values, CHUNKS);
});
