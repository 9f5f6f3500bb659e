// examples/chat-ai in a real browser, over HTTP/1.1 and over HTTP/2: each token comes to each page once and in order, whatever happens to
// the servers in the middle of an answer, and every answer has an end, which all pages show.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { selfSigned } from '../certificate.mjs';
import { BINARY, Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { waitFor } from '../wait.mjs';
import { complaintsOf, launchChromium, setHidden } from './chromium.mjs';
import { looks } from './looks.mjs';
import { Program } from './program.mjs';

const EXAMPLE = fileURLToPath(new URL('../../../examples/chat-ai/', import.meta.url));
const CONFIG = join(EXAMPLE, 'encke.toml');
/** What the model says. */
const TEXT = readFileSync(join(EXAMPLE, 'answer.txt'), 'utf8').trimEnd();
const TOKENS = TEXT.split(/\s+/).length;
/** An answer with so many tokens is in its middle. */
const MIDDLE = 30;
/** How long a state may take to be shown, on a busy machine. */
const SHOWN_MS_MAX = 60_000;
const STOPS = 5;
/** So many questions are asked until so many answers were stopped. */
const ASKED_MAX = 20;
/** Much more than a stop takes, also on a busy machine, and less than an answer without one. */
const STOP_MS_MAX = 3_000;
/** More tabs than a browser opens connections to one server. */
const TABS = 8;
/** What the browser says of a server that is away, and of a token that has ended. */
const EXPECTED = /net::ERR_|status of (401|502)/;

const folder = mkdtempSync(join(tmpdir(), 'encke-chat-ai-'));
const tls = selfSigned(folder);
// The server of the chat is a client of Encke, and trusts this certificate.
process.env.NODE_EXTRA_CA_CERTS = tls.cert;
let browser;

before(async () => {
  browser = await launchChromium([`--ignore-certificate-errors-spki-list=${tls.spki}`]);
});

after(async () => {
  await browser?.close();
  rmSync(folder, { recursive: true, force: true });
});

for (const over of ['HTTP/1.1', 'HTTP/2']) {
  describe(`over ${over}`, { timeout: 600_000 }, () => {
    let site;
    before(async () => {
      site = await Site.start(over);
    });
    beforeEach(() => site.startWhatIsDown());
    after(() => site?.stop());

    test('two tabs, a reloaded one and another machine have the whole answer', async (t) => {
      const ann = await site.user(t, 'ann');
      const [first, second] = [await ann.open(), await ann.open()];
      assert.equal(await first.protocol(), over === 'HTTP/2' ? 'h2' : 'http/1.1');
      const id = await first.ask('What is this?');
      await second.has(id, MIDDLE);
      await second.reload();
      const elsewhere = await (await site.user(t, 'ann')).open();
      for (const tab of [first, second, elsewhere]) {
        await tab.has(id, MIDDLE);
        await tab.ends(id, 'done', TEXT);
      }
      const late = await ann.open();
      await late.ends(id, 'done', TEXT);
      assert.deepEqual(ann.complaints(), []);
    });

    for (const [end, user] of [['kill', 'bea'], ['stop', 'cleo']]) {
      test(`after ${end} of Encke in the middle the answer goes on`, async (t) => {
        const someone = await site.user(t, user);
        const tabs = [await someone.open(), await someone.open()];
        const id = await tabs[0].ask('And now?');
        for (const tab of tabs) await tab.has(id, MIDDLE);
        await site.end(end);
        for (const tab of tabs) {
          await tab.hasState('away');
          const { state, tokens } = await tab.answer(id);
          assert.ok(state === 'live' && tokens < TOKENS, `the answer is ${state}, with ${tokens} tokens`);
        }
        await site.startWhatIsDown();
        for (const tab of tabs) {
          await tab.ends(id, 'done', TEXT);
          await tab.hasState('live');
        }
        assert.deepEqual(someone.complaints(), []);
      });
    }

    test('a stop in one tab ends the answer in all', async (t) => {
      const dora = await site.user(t, 'dora');
      const [first, second] = [await dora.open(), await dora.open()];
      const elsewhere = await (await site.user(t, 'dora')).open();
      const tabs = [first, second, elsewhere];
      for (const tab of tabs) await tab.noteEnds();
      const latencies_ms = tabs.map(() => []);
      let [stops, asked] = [0, 0];
      while (stops < STOPS) {
        assert.ok(asked < ASKED_MAX, `only ${stops} of ${asked} answers were stopped in time`);
        const id = await first.ask(`Question ${asked++}`);
        for (const tab of tabs) await tab.hasOrEnded(id, MIDDLE);
        const pressed = await second.pressStop(id);
        const ends = await Promise.all(tabs.map((tab) => tab.ended(id)));
        assert.equal(new Set(ends.map(({ state, text }) => state + text)).size, 1, 'all tabs show the same');
        // On a busy machine an answer may be over before it is stopped.
        if (ends[0].state !== 'stopped') continue;
        stops += 1;
        for (const [index, { text }] of ends.entries()) {
          assert.ok(TEXT.startsWith(text) && text.length < TEXT.length, text);
          latencies_ms[index].push((await tabs[index].endOf(id)) - pressed);
        }
      }
      // Of each tab the one in the middle: the machine may stand still for a moment.
      const medians_ms = latencies_ms.map((ofTab) => ofTab.sort((a, b) => a - b)[Math.floor(STOPS / 2)]);
      const shown = medians_ms.map((latency) => latency.toFixed(1)).join(', ');
      t.diagnostic(`${over}: from the press of the button to its effect in each tab: ${shown} ms (medians)`);
      assert.ok(Math.max(...medians_ms) < STOP_MS_MAX, `the stop took ${shown} ms`);
      assert.deepEqual(dora.complaints(), []);
    });

    test('an answer whose writer was killed is shown as abandoned', async (t) => {
      const eva = await site.user(t, 'eva');
      const [first, second] = [await eva.open(), await eva.open()];
      const id = await first.ask('Are you there?');
      for (const tab of [first, second]) await tab.has(id, MIDDLE);
      await site.killChat();
      await first.tryToAsk('Hello?');
      await first.problem(/^(Failed to fetch|the question was not taken)/);
      const { text } = await first.ends(id, 'abandoned');
      assert.ok(text.length < TEXT.length && TEXT.startsWith(text), text);
      await second.ends(id, 'abandoned', text);
      await site.startWhatIsDown();
      const late = await eva.open();
      await late.ends(id, 'abandoned', text);
      const next = await first.ask('Hello again?');
      await second.ends(next, 'done', TEXT);
      assert.deepEqual(eva.complaints(), []);
    });

    test('an answer that was abandoned while its page was cut off is shown as such', async (t) => {
      const fay = await site.user(t, 'fay');
      const page = await fay.open();
      const id = await page.ask('Are you there?');
      await page.has(id, MIDDLE);
      await site.killChat();
      // The page has all of the answer but its end.
      await waitFor('all that was written is shown', async () => (await page.answer(id)).tokens === (await site.read('fay', id)).tokens);
      await site.end('kill');
      await page.hasState('away');
      // At another address, where the page does not come.
      await site.startEncke('127.0.0.1:0');
      await waitFor('the answer is abandoned', async () => (await site.read('fay', id)).reason === 'abandoned');
      await site.end('stop');
      await site.startEncke();
      const { text } = await page.ends(id, 'abandoned');
      assert.ok(text.length < TEXT.length && TEXT.startsWith(text), text);
      assert.deepEqual(fay.complaints(), []);
    });

    test('an answer whose model failed is shown as failed', async (t) => {
      const gina = await site.user(t, 'gina');
      const page = await gina.open();
      const id = await page.ask('Please fail');
      const { text } = await page.ends(id, 'failed');
      assert.ok(text.length < TEXT.length && TEXT.startsWith(text), text);
      assert.deepEqual(gina.complaints(), []);
    });

    test('a page whose token has ended gets another one', async (t) => {
      const hana = await site.user(t, 'hana');
      const page = await hana.open();
      const id = await page.ask('And now?');
      await page.has(id, MIDDLE);
      await hana.breakToken();
      await site.end('stop');
      await site.startEncke();
      await page.ends(id, 'done', TEXT);
      await page.hasState('live');
      assert.deepEqual(hana.complaints(), []);
    });

    test('a question that is typed while another is on its way can be asked', async (t) => {
      const lou = await site.user(t, 'lou');
      const tab = await lou.open();
      let letThrough;
      const typed = new Promise((resolve) => (letThrough = resolve));
      await tab.page.route('**/answers', async (route) => {
        await typed;
        await route.continue();
      });
      const taken = tab.page.waitForResponse('**/answers');
      await tab.tryToAsk('What is this?');
      await tab.page.fill('#question', 'And that?');
      letThrough();
      await taken;
      await waitFor('the first question is shown', async () => (await tab.shown()).length === 1);
      await tab.page.click('#ask button');
      await waitFor('both questions are shown', async () => (await tab.shown()).length === 2);
      assert.deepEqual(await tab.page.locator('#answers h2').allTextContents(), ['And that?', 'What is this?']);
      for (const id of await tab.shown()) await tab.ends(id, 'done', TEXT);
      assert.deepEqual(lou.complaints(), []);
    });

    test('users see nothing of each other', async (t) => {
      const [ida, joe] = [await site.user(t, 'ida'), await site.user(t, 'joe')];
      const [hers, his] = [await ida.open(), await joe.open()];
      const id = await hers.ask('A secret?');
      await hers.has(id, MIDDLE);
      const requests = [['GET'], ['GET', '&live=sse'], ['POST']];
      for (const [method, query = ''] of requests) {
        for (const path of [`ida/${id}`, 'ida', `ida/${crypto.randomUUID()}`]) {
          assert.equal(await his.statusOf(method, `${path}?offset=-1${query}`), 404, `${method} ${path}${query}`);
        }
      }
      assert.equal(await hers.statusOf('GET', `ida/${id}?offset=-1`), 200);
      const own = await his.ask('And mine?');
      await his.ends(own, 'done', TEXT);
      await hers.ends(id, 'done', TEXT);
      assert.deepEqual(await his.shown(), [own]);
      assert.deepEqual(await hers.shown(), [id]);
      for (const tab of [hers, his]) assert.equal(await tab.text('#tokens'), String(TOKENS));
      const stranger = await browser.newContext();
      t.after(() => stranger.close());
      const response = await stranger.request.post(`${site.origin}/answers`, { data: 'Who am I?', ignoreHTTPSErrors: true });
      assert.equal(response.status(), 401);
    });

    test('tabs out of sight leave the connections to those in sight, and go on when they are seen', async (t) => {
      const kim = await site.user(t, 'kim');
      const first = await kim.open();
      const tabs = [];
      for (let tab = 0; tab < TABS; tab += 1) {
        const another = await kim.open();
        await another.hasState('live');
        await setHidden(another.page, true);
        tabs.push(another);
      }
      const id = await first.ask('Who sees this?');
      await first.has(id, MIDDLE);
      assert.deepEqual(await tabs[0].shown(), []);
      await setHidden(tabs[0].page, false);
      await tabs[0].has(id, MIDDLE);
      await setHidden(tabs[0].page, true);
      await first.ends(id, 'done', TEXT);
      await setHidden(tabs[0].page, false);
      await tabs[0].ends(id, 'done', TEXT);
      assert.deepEqual(kim.complaints(), []);
    });

    test('it looks good on every screen', { skip: over !== 'HTTP/1.1' && 'it looks as over HTTP/1.1' }, async (t) => {
      const lea = await site.user(t, 'lea');
      const page = await lea.openFor('');
      await page.locator('#sign-in').waitFor();
      await looks(page, 'chat-ai-sign-in');
      await page.fill('#name', 'lea');
      await page.click('#sign-in button');
      const tab = new Tab(page, site.url);
      await tab.hasState('live');
      await looks(page, 'chat-ai-empty');
      const ids = { done: await tab.ask('What is this?'), failed: await tab.ask('Please fail'), stopped: await tab.ask('Will you stop?') };
      await tab.has(ids.stopped, MIDDLE);
      await tab.pressStop(ids.stopped);
      for (const [state, id] of Object.entries(ids)) await tab.ends(id, state);
      ids.abandoned = await tab.ask('Are you there?');
      await tab.has(ids.abandoned, MIDDLE);
      // Before the pictures, so that it does not end while they are taken. It is live for some seconds more.
      await site.killChat();
      await looks(page, 'chat-ai-live');
      await tab.ends(ids.abandoned, 'abandoned');
      await looks(page, 'chat-ai', { fullPage: true });
      await site.end('stop');
      await tab.hasState('away');
      await looks(page, 'chat-ai-away');
      assert.deepEqual(lea.complaints(), []);
    });
  });
}

/** Encke with the settings of the example and the server of the chat, each at an address that it keeps. */
class Site {
  #options;
  #listen;
  #encke;
  #chat;
  #chatListen;
  #front;
  /** Where pages find the chat. */
  origin;

  static async start(over) {
    const site = new Site();
    const secure = over === 'HTTP/2';
    site.#listen = await fixedAddress();
    site.#chatListen = await fixedAddress();
    site.#front = secure ? await frontOf(site.#chatListen) : undefined;
    site.origin = secure ? `https://127.0.0.1:${site.#front.address().port}` : `http://${site.#chatListen}`;
    const args = ['--config', CONFIG, '--admin-listen', 'none', '--cors-origins', site.origin];
    site.#options = { data: join(folder, secure ? 'secure' : 'plain'), tls: secure ? tls : undefined, args };
    return site;
  }

  /** Where pages find Encke. */
  get url() {
    return `${this.#options.tls ? 'https' : 'http'}://${this.#listen}`;
  }

  async startWhatIsDown() {
    if (!this.#encke) await this.startEncke();
    if (this.#chat) return;
    this.#chat = new Program('serve.mjs', [this.#chatListen.split(':')[1], this.url], EXAMPLE);
    await this.#chat.prints(/http:/);
  }

  async startEncke(listen = this.#listen) {
    this.#encke = await Encke.start({ ...this.#options, listen });
  }

  /** Ends Encke: `how` is `kill` or `stop`. */
  async end(how) {
    const ended = this.#encke;
    this.#encke = undefined;
    await ended[how]();
  }

  async killChat() {
    this.#chat.child.kill('SIGKILL');
    await this.#chat.exit;
    this.#chat = undefined;
  }

  async stop() {
    this.#front?.close();
    if (this.#chat) await this.killChat();
    if (this.#encke) await this.end('stop');
  }

  /** A browser of somebody, which is closed at the end of the test `t`. */
  async user(t, name) {
    const context = await browser.newContext({ viewport: { width: 1000, height: 860 } });
    t.after(() => context.close());
    return new User(this, context, name);
  }

  /** How many tokens of an answer are stored, and the reason of its end. */
  async read(user, id) {
    const allowed = ['--sub', user, '--allow', 'read=/v1/stream/chat/{sub}/**'];
    const token = execFileSync(BINARY, ['token', '--config', CONFIG, ...allowed], { encoding: 'utf8' }).trim();
    const options = { headers: { Authorization: `Bearer ${token}` } };
    const { status, headers, body } = await this.#encke.request('GET', `/v1/stream/chat/${user}/${id}?offset=-1`, options);
    assert.equal(status, 200, body);
    return { tokens: JSON.parse(body).filter(({ type }) => type === 'text-delta').length, reason: headers['encke-end-reason'] };
  }
}

/** A browser in which a user is signed in. */
class User {
  #site;
  #context;
  #name;
  #complaints = [];

  constructor(site, context, name) {
    this.#site = site;
    this.#context = context;
    this.#name = name;
  }

  /** Opens the page, and waits until it has its streams. */
  async open() {
    const tab = new Tab(await this.openFor(this.#name), this.#site.url);
    await tab.hasState('live');
    return tab;
  }

  /** Opens the page as it is for a user, or for none. */
  async openFor(name) {
    const page = await this.#context.newPage();
    this.#complaints.push(complaintsOf(page));
    await page.goto(`${this.#site.origin}/#${name}`);
    return page;
  }

  /** What pages complained about, but for servers that were away and tokens that had ended. */
  complaints() {
    return this.#complaints.flat().filter((complaint) => !EXPECTED.test(complaint));
  }

  /** Leaves the browser with a token that Encke refuses. */
  async breakToken() {
    const cookies = await this.#context.cookies();
    await this.#context.addCookies(cookies.map((cookie) => ({ ...cookie, value: `${cookie.value}x` })));
  }
}

/** A page, and what a user does with it and sees of it. */
class Tab {
  #url;

  constructor(page, url) {
    this.page = page;
    this.#url = url;
  }

  text(selector) {
    return this.page.locator(selector).textContent();
  }

  /** Waits until the page has this state, also while it loads. */
  hasState(state) {
    return this.page.locator(`body[data-state="${state}"]`).waitFor({ timeout: SHOWN_MS_MAX });
  }

  problem(pattern) {
    return waitFor(`the page says ${pattern}`, async () => pattern.test(await this.text('#problem')));
  }

  async reload() {
    await this.page.reload();
    await this.hasState('live');
  }

  async tryToAsk(question) {
    await this.page.fill('#question', question);
    await this.page.click('#ask button');
  }

  /** Asks, and returns the id of the answer. */
  async ask(question) {
    const before = await this.shown();
    await this.tryToAsk(question);
    await waitFor('the answer has begun', async () => (await this.shown()).length > before.length);
    return (await this.shown())[0];
  }

  /** The ids of the answers, the newest first. */
  shown() {
    return this.page.locator('#answers li').evaluateAll((answers) => answers.map((answer) => answer.dataset.id));
  }

  /** What is shown of an answer; nothing if it is not in the list. */
  answer(id) {
    return this.page.evaluate((id) => {
      const answer = document.querySelector(`[data-id="${id}"]`);
      if (!answer) return { tokens: 0 };
      const part = (name) => answer.querySelector(name).textContent;
      return { state: answer.dataset.state, text: part('p'), tokens: Number(part('b')) };
    }, id);
  }

  /** Waits until an answer has so many tokens. */
  has(id, tokens) {
    return waitFor(`${tokens} tokens are shown`, async () => (await this.answer(id)).tokens >= tokens);
  }

  /** The same, unless it has ended before. */
  hasOrEnded(id, tokens) {
    return waitFor(`${tokens} tokens are shown`, async () => {
      const { state = 'live', tokens: shown } = await this.answer(id);
      return shown >= tokens || state !== 'live';
    });
  }

  /** Waits until an answer has ended. */
  async ended(id) {
    await waitFor('the answer has ended', async () => !['live', undefined].includes((await this.answer(id)).state));
    return this.answer(id);
  }

  /** Waits until an answer has ended, for the right reason and with the right text. */
  async ends(id, state, text) {
    const shown = await this.ended(id);
    assert.equal(shown.state, state);
    assert.equal(shown.tokens, shown.text.split(/\s+/).length, 'each token is shown and counted once');
    if (text !== undefined) assert.equal(shown.text, text);
    return shown;
  }

  /** The protocol by which the page reads streams, as the browser names it. */
  async protocol() {
    const network = await this.page.context().newCDPSession(this.page);
    const protocol = new Promise((resolve) => {
      network.on('Network.responseReceived', ({ type, response }) => type === 'EventSource' && resolve(response.protocol));
    });
    await network.send('Network.enable');
    await this.reload();
    return protocol;
  }

  /** The status of a request of the page to Encke, with the cookie. */
  statusOf(method, path) {
    const headers = method === 'POST' ? { 'Stream-Closed': 'true', 'Encke-End-Reason': 'stopped' } : {};
    const request = ([url, options]) => fetch(url, options).then(({ status }) => status);
    return this.page.evaluate(request, [`${this.#url}/v1/stream/chat/${path}`, { method, headers, credentials: 'include' }]);
  }

  /** Has the page note when buttons are pressed and answers end, in milliseconds since 1970. */
  noteEnds() {
    return this.page.evaluate(() => {
      const now = () => performance.timeOrigin + performance.now();
      window.ends = {};
      document.addEventListener('click', () => (window.pressed = now()), { capture: true });
      const note = () => {
        for (const { dataset } of document.querySelectorAll('#answers li:not([data-state="live"])')) window.ends[dataset.id] ??= now();
      };
      new MutationObserver(note).observe(document.getElementById('answers'), { subtree: true, attributeFilter: ['data-state'] });
    });
  }

  /** Presses the button of an answer, and returns when that was. The button of one that has just ended is there and not shown. */
  pressStop(id) {
    return this.page.evaluate((id) => {
      document.querySelector(`[data-id="${id}"] button`).click();
      return window.pressed;
    }, id);
  }

  endOf(id) {
    return this.page.evaluate((id) => window.ends[id], id);
  }
}

/** A server of https in front of the chat. */
async function frontOf(address) {
  const [hostname, port] = address.split(':');
  const server = https.createServer({ key: readFileSync(tls.key), cert: readFileSync(tls.cert) }, (request, response) => {
    const { method, url: path, headers } = request;
    const onward = http.request({ hostname, port, method, path, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      answer.pipe(response);
    });
    onward.on('error', () => response.writeHead(502).end());
    request.pipe(onward);
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return server;
}
