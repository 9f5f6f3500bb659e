// WebSockets of pages in Chromium, plain and over TLS: the code of docs/websocket.md as it is written, and clients that follow a
// stream, a pattern and a list and append, over kill -9: every record once.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { selfSigned } from '../certificate.mjs';
import { LOAD, append, create, everyRecordOnceOverCuts, read } from '../cuts.mjs';
import { blocks } from '../docs/blocks.mjs';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { waitFor } from '../wait.mjs';
import { launchChromium } from './chromium.mjs';

const CLIENTS = fileURLToPath(new URL('../channel-client.mjs', import.meta.url));
const DOCUMENT = fileURLToPath(new URL('../../../docs/websocket.md', import.meta.url));
/** How many records the code of the documentation gets from one server, and between two. */
const RECORDS = 20;

const folder = mkdtempSync(join(tmpdir(), 'encke-browser-websocket-'));
const certificate = selfSigned(folder);
let browser;

before(async () => {
  browser = await launchChromium([`--ignore-certificate-errors-spki-list=${certificate.spki}`]);
});

after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true, force: true });
});

/** A page of a server, what it logs, and its console, in which names stay from one input to the next. */
async function openPage(url) {
  const page = await browser.newPage();
  const logged = [];
  page.on('console', (message) => logged.push(message.text()));
  await page.goto(`${url}/`);
  const session = await page.context().newCDPSession(page);
  const enter = async (expression) => {
    const { exceptionDetails } = await session.send('Runtime.evaluate', { expression, replMode: true, awaitPromise: true });
    assert.equal(exceptionDetails, undefined, `${expression}: ${JSON.stringify(exceptionDetails)}`);
  };
  return { page, logged, enter };
}

/** The messages that the code of the documentation has logged for a stream. */
const messages = (logged, stream) =>
  logged.filter((line) => line.startsWith(`${stream} `)).flatMap((line) => JSON.parse(line.slice(stream.length + 1)));

/** Starts a load in a page. */
async function startInPage(url) {
  const { page } = await openPage(url);
  await page.route('**/channel-client.mjs', (route) => route.fulfill({ path: CLIENTS, contentType: 'text/javascript' }));
  await page.evaluate(async (options) => {
    const { Load } = await import('/channel-client.mjs');
    const url = `${location.protocol.replace('http', 'ws')}//${location.host}/v1/events`;
    globalThis.load = new Load(WebSocket, url, options);
  }, LOAD);
  return {
    state: () => page.evaluate(() => load.state()),
    stopAppends: () => page.evaluate(() => load.stopAppends()),
    results: () => page.evaluate(() => load.results()),
    end: () => page.close(),
  };
}

for (const [name, tls] of [['ws', undefined], ['wss', certificate]]) {
  test(`${name}: the code of the documentation gets every record once, over a stop and kill -9`, async () => {
    const data = join(folder, `document-${name}`);
    const listen = await fixedAddress();
    let encke = await Encke.start({ data, tls, listen });
    try {
      const { page, logged, enter } = await openPage(encke.url);
      const code = blocks(DOCUMENT).find(({ language, text }) => language === 'js' && text.includes('function connect()'));
      await enter(code.text);
      const has = (stream, count) => waitFor(`${count} messages of ${stream}`, () => messages(logged, stream).length >= count);
      await has('chat/1', 1);
      const all = [{ text: 'Hello' }];
      const appendSome = async () => {
        for (let count = 0; count < RECORDS; count += 1) {
          all.push({ number: all.length });
          await append(encke, 'chat/1', all.at(-1));
        }
      };
      for (const end of ['stop', 'kill']) {
        await appendSome();
        await has('chat/1', all.length);
        // One more subscription and one more append are for the next connection.
        const further = `chat/${end}`;
        await create(encke, further);
        await enter(`offsets.set('${further}', '-1'); unsent.push({ type: 'append', stream: '${further}', data: 'sent by the page' })`);
        const closed = logged.filter((line) => line.startsWith('closed ')).length;
        await encke[end]();
        await waitFor('the page has noticed it', () => logged.filter((line) => line.startsWith('closed ')).length > closed);
        // At another address, where the page does not come.
        encke = await Encke.start({ data, tls });
        await appendSome();
        await encke.kill();
        encke = await Encke.start({ data, tls, listen });
        await has(further, 1);
        await appendSome();
        await has('chat/1', all.length);
      }
      assert.deepEqual(messages(logged, 'chat/1'), all);
      assert.deepEqual(await read(encke, 'chat/1'), all);
      for (const end of ['stop', 'kill']) assert.deepEqual(messages(logged, `chat/${end}`), ['sent by the page']);
      await page.close();
      await encke.stop();
    } finally {
      await encke.kill();
    }
  });

  test(`${name}: every record of a stream, a pattern and a list once and in order, over kill -9 in the middle of appends`, async () => {
    await everyRecordOnceOverCuts({ data: join(folder, `cuts-${name}`), tls }, startInPage);
  });
}
