// @durable-streams/y-durable-streams: documents of Yjs in streams of Encke. Pages speak to the package's own server (YjsServer), which knows
// snapshots and awareness, and keeps everything in Encke. It reads and writes with a token of its own, so owners are checked in front of it.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { YjsProvider } from '@durable-streams/y-durable-streams';
import { YjsServer } from '@durable-streams/y-durable-streams/server';
import { Awareness } from 'y-protocols/awareness';
import * as Y from 'yjs';
import { waitFor } from '../wait.mjs';
import { TOKENS } from './answer.mjs';
import { endRequestsTo, isPending } from './requests.mjs';
import { Server, readAll } from './server.mjs';

const DOCUMENTS = ['/v1/stream/yjs/**'];
/** The package compacts a document when its updates have so many bytes, unless it is told otherwise. */
const DEFAULT_COMPACTION_BYTES = 1 << 20;
const MODES = [
  { mode: 'without access control', access: false },
  { mode: 'with a token', access: true },
];

const text = (count = TOKENS.length) => TOKENS.slice(0, count).join('');

/** A server for Yjs and its pages. */
class Documents {
  /** The server whose streams hold the documents. */
  encke;
  /** Where pages find the documents. */
  url;
  #server;
  #pages = [];

  /** Starts both servers. They are stopped when the test `t` ends, after the pages have left. */
  static async start(t, { access = false, compactionThreshold } = {}) {
    const documents = new Documents();
    t.after(() => documents.#end());
    documents.encke = await Server.start(t, { access });
    const grants = { read: DOCUMENTS, append: DOCUMENTS, create: DOCUMENTS, delete: DOCUMENTS };
    const dsServerHeaders = access ? await documents.encke.bearer('yjs', grants) : {};
    const server = new YjsServer({ dsServerUrl: documents.encke.url, dsServerHeaders, compactionThreshold });
    documents.url = `${await server.start()}/v1/yjs/service`;
    documents.#server = server;
    return documents;
  }

  /** A page with a document, as soon as it has what is stored. */
  async open(docId, { awareness = false } = {}) {
    const page = new Page(this.url, docId, awareness);
    this.#pages.push(page);
    await page.synced();
    return page;
  }

  /** Where reading of a document begins: `-1`, or a snapshot. */
  async beginning(docId) {
    const response = await fetch(`${this.url}/docs/${docId}?offset=snapshot`, { redirect: 'manual' });
    return new URL(response.headers.get('Location'), this.url).searchParams.get('offset');
  }

  async #end() {
    for (const page of this.#pages) await page.leave();
    if (!this.#server) return;
    // The package does not wait until it has said that a page leaves.
    await waitFor('the pages have left', () => !isPending('POST', this.url));
    endRequestsTo(new URL(this.url).origin);
    await this.#server.stop();
  }
}

class Page {
  awareness;
  #doc = new Y.Doc();
  #text = this.#doc.getText('answer');
  #provider;
  #errors = [];

  constructor(baseUrl, docId, awareness) {
    this.awareness = awareness ? new Awareness(this.#doc) : undefined;
    this.#provider = new YjsProvider({ doc: this.#doc, baseUrl, docId, awareness: this.awareness });
    this.#provider.on('error', (error) => this.#errors.push(error));
  }

  /** What others know this page by. */
  get id() {
    return this.#doc.clientID;
  }

  /** Waits until the page has what is stored. */
  synced() {
    return waitFor('the document is read', () => {
      if (this.#errors.length > 0) throw this.#errors[0];
      return this.#provider.synced;
    });
  }

  /** Appends to the text, and waits until that is stored. */
  async add(token) {
    this.#text.insert(this.#text.length, token);
    await this.#provider.flush();
  }

  text() {
    return this.#text.toString();
  }

  /** Waits until the page shows a text. */
  async shows(wanted) {
    await waitFor(`the page shows ${JSON.stringify(wanted.slice(-80))}`, () => this.text() === wanted);
  }

  disconnect() {
    return this.#provider.disconnect();
  }

  connect() {
    return this.#provider.connect();
  }

  async leave() {
    await this.disconnect();
    this.awareness?.destroy();
    this.#provider.destroy();
    this.#doc.destroy();
  }
}

for (const { mode, access } of MODES) {
  test(`two pages read an answer live, one goes on after a pause, a third one joins late, each token once: ${mode}`, async (t) => {
    const documents = await Documents.start(t, { access });
    const writer = await documents.open('answer');
    const readers = [await documents.open('answer'), await documents.open('answer')];
    for (let count = 1; count <= 3; count += 1) {
      await writer.add(TOKENS[count - 1]);
      for (const reader of readers) await reader.shows(text(count));
    }
    await readers[0].disconnect();
    for (const token of TOKENS.slice(3)) await writer.add(token);
    await readers[1].shows(text());
    assert.equal(readers[0].text(), text(3));
    await readers[0].connect();
    await readers[0].shows(text());
    await writer.leave();
    const late = await documents.open('answer');
    await late.shows(text());
  });

  test(`pages read and write on by themselves when the server is restarted in the middle of an answer: ${mode}`, async (t) => {
    // The package reports each request that fails meanwhile.
    t.mock.method(console, 'error', () => {});
    const documents = await Documents.start(t, { access });
    const writer = await documents.open('answer');
    const readers = [await documents.open('answer'), await documents.open('answer')];
    for (const token of TOKENS.slice(0, 3)) await writer.add(token);
    for (const reader of readers) await reader.shows(text(3));
    await documents.encke.stop();
    await documents.encke.startAgain();
    for (const token of TOKENS.slice(3)) await writer.add(token);
    for (const reader of readers) await reader.shows(text());
    const late = await documents.open('answer');
    await late.shows(text());
  });

  // Version 0.2.7 has two limits, at every server. YjsServer leaves a response open when its source is cut, so a page waits until it connects again.
  // A page that has written and connects again numbers its updates from 0 once more, so the server takes the next ones for repetitions and drops them.
  test(`pages that connect again after a crash of the server have each token once: ${mode}`, async (t) => {
    t.mock.method(console, 'error', () => {});
    const documents = await Documents.start(t, { access });
    const first = await documents.open('answer');
    const readers = [await documents.open('answer'), await documents.open('answer')];
    for (const token of TOKENS.slice(0, 3)) await first.add(token);
    for (const reader of readers) await reader.shows(text(3));
    await documents.encke.kill();
    await documents.encke.startAgain();
    for (const reader of readers) {
      await reader.disconnect();
      await reader.connect();
      await reader.synced();
    }
    const second = await documents.open('answer');
    for (const token of TOKENS.slice(3)) await second.add(token);
    for (const reader of readers) await reader.shows(text());
    const late = await documents.open('answer');
    await late.shows(text());
  });

  test(`pages see each other come and leave: ${mode}`, async (t) => {
    const documents = await Documents.start(t, { access });
    const [ann, bob] = [await documents.open('aware', { awareness: true }), await documents.open('aware', { awareness: true })];
    await waitFor('bob sees ann', () => {
      // Bob may not listen yet.
      ann.awareness.setLocalState({ name: 'ann' });
      return bob.awareness.getStates().get(ann.id)?.name === 'ann';
    });
    await ann.leave();
    await waitFor('bob sees that ann has left', () => !bob.awareness.getStates().has(ann.id));
  });
}

test('with access control a stranger cannot read the streams of documents', async (t) => {
  const documents = await Documents.start(t, { access: true });
  const page = await documents.open('own');
  await page.add(TOKENS[0]);
  const url = documents.encke.stream('yjs/service/docs/own/.updates');
  assert.equal((await readAll(url)).status, 401);
  assert.equal((await readAll(url, await documents.encke.bearer('bob', { read: ['/v1/stream/chat/**'] }))).status, 404);
});

// Without a snapshot the package uses offsets as they are.
test('a document that is never compacted is read whole, however large it is', async (t) => {
  const documents = await Documents.start(t, { compactionThreshold: Infinity });
  const writer = await documents.open('large');
  const part = 'x'.repeat(DEFAULT_COMPACTION_BYTES / 2);
  for (let count = 0; count < 3; count += 1) await writer.add(part);
  assert.equal(await documents.beginning('large'), '-1');
  const late = await documents.open('large');
  await late.shows(part.repeat(3));
});

// YjsServer 0.2.7 reads behind a snapshot at the offset that it was given plus one. Offsets have no such arithmetic: for Encke that is inside the next
// record, or, if there is none, behind the end. This test fails when a version of the package leaves offsets as they are; until then a document needs a
// `compactionThreshold` that is never reached.
test('a document that was compacted cannot be opened', async (t) => {
  t.mock.method(console, 'log', () => {});
  const part = 'x'.repeat(400);
  const documents = await Documents.start(t, { compactionThreshold: part.length });
  const writer = await documents.open('compacted');
  await writer.add(part);
  await waitFor('a snapshot', async () => (await documents.beginning('compacted')).endsWith('_snapshot'));
  await assert.rejects(documents.open('compacted'), (error) => error.status === 400 && error.message.includes('beyond_tail'));
});
