// @durable-streams/aisdk-transport: answers of the AI SDK in streams of Encke. The application's route and its pages are the package's; the
// pages read from Encke itself, at the address that the application gives them. They send no credentials, so with access control that is a signed URL.

import assert from 'node:assert/strict';
import { on } from 'node:events';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { createDurableChatTransport, toDurableStreamResponse } from '@durable-streams/aisdk-transport';
import { AbstractChat } from 'ai';
import { waitFor } from '../wait.mjs';
import { Answer, Reader, TOKENS } from './answer.mjs';
import { isPending } from './requests.mjs';
import { PAGE_ORIGIN, Server, readAll } from './server.mjs';

const API = 'http://app.example/api/chat';
const CHUNKS = [
  { type: 'start', messageId: 'message' },
  { type: 'text-start', id: 'text' },
  ...TOKENS.map((delta) => ({ type: 'text-delta', id: 'text', delta })),
  { type: 'text-end', id: 'text' },
  { type: 'finish' },
];
/** Chunks before the first token. */
const BEFORE = 2;
const NAME = 'chat/ann/answer';
const OWN = ['/v1/stream/chat/{sub}/**'];
const EVERYTHING = ['/v1/stream/**'];

/** With access control the application has a token, and its pages a signed URL. */
const MODES = [
  { mode: 'without access control', access: false },
  { mode: 'with a read URL', access: true },
];

/** An application with one answer: POST writes it to the stream, GET says where it is. */
class Application {
  answer = new Answer(CHUNKS);
  url;
  /** Where pages read. */
  readUrl;
  #stream;
  #writers = [];

  static async start(server, { access }) {
    const application = new Application();
    application.url = server.stream(NAME);
    application.readUrl = application.url;
    application.#stream = { writeUrl: application.url };
    if (access) {
      const headers = await server.bearer('ann', { create: OWN, append: OWN, read: OWN });
      application.readUrl = await readUrlOf(application.url, headers);
      application.#stream = { writeUrl: application.url, readUrl: application.readUrl, headers, createIfMissing: false };
    }
    return application;
  }

  /** Begins the answer. */
  begin() {
    const waitUntil = (writer) => this.#writers.push(writer);
    return toDurableStreamResponse({ source: this.answer, stream: this.#stream, waitUntil });
  }

  /** What a page has to speak to this application. */
  transport() {
    const fetchClient = async (url, { method }) => {
      if (method === 'POST') return this.begin();
      assert.equal(url, `${API}/chat/stream`);
      return Response.json({ streamUrl: this.readUrl });
    };
    return createDurableChatTransport({ api: API, fetchClient });
  }

  /** A page that asks, and reads the answer. */
  async ask(abortSignal) {
    const messages = [{ id: 'question', role: 'user', parts: [{ type: 'text', text: 'Say something.' }] }];
    return new Reader(await this.transport().sendMessages({ trigger: 'submit-message', chatId: 'chat', messages, abortSignal }));
  }

  /** A page that reads an answer that has begun. */
  async join() {
    return new Reader(await this.transport().reconnectToStream({ chatId: 'chat' }));
  }

  /** Waits until the answer is written and closed. */
  async written() {
    await Promise.all(this.#writers);
  }
}

/** Creates a stream that belongs to the caller, or finds it in the state that `fields` name. Returns a URL with which pages read it. */
async function readUrlOf(url, headers, fields = {}) {
  const own = { 'Content-Type': 'application/json', 'Encke-Owner': 'self', 'Encke-Read-URL': '600' };
  const response = await fetch(url, { method: 'PUT', headers: { ...headers, ...own, ...fields } });
  assert.ok(response.ok, `PUT: ${response.status}`);
  return response.headers.get('Encke-Read-URL');
}

/** A page of the AI SDK; its own hooks for pages differ in where they keep the state. */
class Chat extends AbstractChat {
  constructor(transport) {
    const messages = [];
    const state = {
      status: 'ready',
      error: undefined,
      messages,
      pushMessage: (message) => messages.push(message),
      popMessage: () => messages.pop(),
      replaceMessage: (index, message) => (messages[index] = message),
      snapshot: structuredClone,
    };
    super({ id: 'chat', transport, state });
  }

  /** The text of the answer so far. */
  text() {
    const answer = this.messages.find((message) => message.role === 'assistant');
    return answer?.parts.map((part) => part.text ?? '').join('') ?? '';
  }
}

/** A page in a thread of its own: its chunks as they come. */
async function* pageInThread(t, streamUrl) {
  const worker = new Worker(new URL('page-worker.mjs', import.meta.url), { workerData: { streamUrl } });
  t.after(() => worker.terminate());
  for await (const [{ chunk, error }] of on(worker, 'message')) {
    if (error) throw new Error(error);
    if (!chunk) return;
    yield chunk;
  }
}

/** Says two tokens, and waits until the event streams of pages are open: only there can the second token come. */
async function sayLive(answer, pages) {
  answer.say(BEFORE + 1);
  for (const page of pages) await page.has(BEFORE + 1);
  answer.say();
  for (const page of pages) await page.has(BEFORE + 2);
}

for (const { mode, access } of MODES) {
  test(`two pages read an answer live, a third one joins late, each has every chunk once: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const application = await Application.start(server, { access });
    const page = await application.ask();
    const other = await application.join();
    for (let count = 1; count <= BEFORE + 3; count += 1) {
      application.answer.say();
      // Both have it before the next one is there.
      await page.has(count);
      await other.has(count);
    }
    const third = await application.join();
    await third.has(BEFORE + 3);
    application.answer.finish();
    for (const reader of [page, other, third]) assert.deepEqual(await reader.all(), CHUNKS);
    await application.written();
    const late = await application.join();
    assert.deepEqual(await late.all(), CHUNKS);
    const stored = await readAll(application.url, access ? await server.bearer('ann', { read: OWN }) : {});
    assert.equal(stored.headers.get('Stream-Closed'), 'true');
    assert.deepEqual(stored.values, CHUNKS);
  });

  test(`a chat of the AI SDK resumes an answer when its page is loaded again: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const application = await Application.start(server, { access });
    const first = new Chat(application.transport());
    const sent = first.sendMessage({ text: 'Say something.' });
    application.answer.say(BEFORE + 2);
    await waitFor('the page shows two tokens', () => first.text() === TOKENS.slice(0, 2).join(''));
    const second = new Chat(application.transport());
    const resumed = second.resumeStream();
    await waitFor('the loaded page shows two tokens', () => second.text() === TOKENS.slice(0, 2).join(''));
    application.answer.finish();
    await Promise.all([sent, resumed]);
    for (const chat of [first, second]) {
      assert.equal(chat.error, undefined);
      assert.equal(chat.status, 'ready');
      assert.equal(chat.text(), TOKENS.join(''));
    }
  });

  test(`pages read on by themselves when the server is restarted in the middle of an answer: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const application = await Application.start(server, { access });
    const page = await application.ask();
    const other = await application.join();
    await sayLive(application.answer, [page, other]);
    // These appends are under way when the server stops, or come when it has.
    application.answer.say(2);
    await server.stop();
    application.answer.say();
    await server.startAgain();
    await page.has(BEFORE + 5);
    application.answer.finish();
    for (const reader of [page, other]) assert.deepEqual(await reader.all(), CHUNKS);
    await application.written();
    const late = await application.join();
    assert.deepEqual(await late.all(), CHUNKS);
  });

  test(`the application goes on after a crash of the server, and a page that is loaded again has every chunk once: ${mode}`, async (t) => {
    const server = await Server.start(t, { access });
    const application = await Application.start(server, { access });
    await application.begin();
    const page = new Reader(pageInThread(t, application.readUrl));
    await sayLive(application.answer, [page]);
    // The package repeats an append whose response is lost, and then its chunk is there twice, at every server.
    await waitFor('every append is acknowledged', () => !isPending('POST', application.url));
    await server.kill();
    assert.equal((await page.failure()).message, 'terminated');
    application.answer.say();
    await server.startAgain();
    const again = await application.join();
    await again.has(BEFORE + 3);
    application.answer.finish();
    assert.deepEqual(await again.all(), CHUNKS);
    await application.written();
  });
}

test('a page that leaves does not end the answer', async (t) => {
  const server = await Server.start(t);
  const application = await Application.start(server, { access: false });
  const left = new AbortController();
  const page = await application.ask(left.signal);
  application.answer.say(BEFORE + 1);
  await page.has(BEFORE + 1);
  left.abort();
  application.answer.finish();
  await application.written();
  const late = await application.join();
  assert.deepEqual(await late.all(), CHUNKS);
});

test('with access control an answer is for its owner and for pages with its URL', async (t) => {
  const server = await Server.start(t, { access: true });
  const application = await Application.start(server, { access: true });
  application.answer.finish();
  const page = await application.ask();
  assert.deepEqual(await page.all(), CHUNKS);
  await application.written();
  // The package sends no credentials of its own.
  const { readUrl, url } = application;
  application.readUrl = url;
  await assert.rejects(application.join(), (error) => error.status === 401);
  application.readUrl = readUrl.replace('/answer?', '/other?');
  await assert.rejects(application.join(), (error) => error.status === 401);
  // A page that comes late gets another URL.
  const ann = await server.bearer('ann', { create: OWN, read: OWN });
  application.readUrl = await readUrlOf(url, ann, { 'Stream-Closed': 'true' });
  assert.deepEqual(await (await application.join()).all(), CHUNKS);
  assert.deepEqual((await readAll(url, ann)).values, CHUNKS);
  const stranger = await readAll(url, await server.bearer('bob', { read: EVERYTHING }));
  assert.equal(stranger.status, 404);
  const append = await fetch(readUrl, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' });
  assert.equal(append.status, 401);
});

test('a page of another origin may read at a read URL, and sees the fields that the package needs', async (t) => {
  const server = await Server.start(t, { access: true });
  const { readUrl } = await Application.start(server, { access: true });
  const response = await fetch(`${readUrl}&offset=-1`, { headers: { Origin: PAGE_ORIGIN } });
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('Access-Control-Allow-Origin'), PAGE_ORIGIN);
  const exposed = response.headers.get('Access-Control-Expose-Headers').toLowerCase().split(/, */);
  for (const field of ['stream-next-offset', 'stream-cursor', 'stream-up-to-date', 'stream-closed']) assert.ok(exposed.includes(field), field);
});
