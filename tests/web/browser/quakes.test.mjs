// examples/quakes in a real browser, against the real binary: what the page shows must be what was fed, in order, each
// event once, whatever happens to the server in between.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { quakes } from '../../../examples/quakes/quakes.mjs';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { complaintsOf, launchChromium, setHidden } from './chromium.mjs';
import { looks } from './looks.mjs';
import { Program } from './program.mjs';

/** The list shows this many of the latest events. */
const ROWS_MAX = 60;
/** How long a person would wait at most for something to show up. */
const SHOWN_MS_MAX = 20_000;
/** More tabs than a browser opens connections to one server. */
const TABS = 8;
const EVENTS = quakes();

const data = mkdtempSync(join(tmpdir(), 'encke-browser-'));
let complaints;
let encke;
let site;
let browser;
let context;
let page;
/** The step that failed. */
let failed;

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress() });
  site = new Program('serve.mjs', ['--listen', '127.0.0.1:0']);
  browser = await launchChromium();
  context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: 'light' });
  page = await context.newPage();
  page.setDefaultTimeout(SHOWN_MS_MAX);
  complaints = complaintsOf(page);
});

after(async () => {
  await browser?.close();
  await site?.stop();
  await encke?.stop();
  rmSync(data, { recursive: true, force: true });
});

step('the page waits for a stream that is not there yet', async () => {
  const [, address] = await site.prints(/(http:\/\/\S+)/);
  await page.goto(`${address}?stream=${encodeURIComponent(streamUrl())}`);
  await page.locator('body[data-state="missing"]').waitFor();
  assert.equal(await text('#state'), 'waiting for the first event');
  assert.equal(await text('#count'), '0');
  assert.ok(await page.locator('#empty').isVisible());
  await page.evaluate(() => (window.openedOnce = true));
  await looks(page, 'quakes-empty');
});

step('what was fed is shown, in order', async () => {
  await feed('--rate', '0', '--until', '600').succeeds();
  await shows(600);
  assert.equal(await text('#state'), 'live');
  assert.ok(await page.locator('#empty').isHidden());
  const [width, height] = await page.locator('#land').evaluate((path) => [path.getBBox().width, path.getBBox().height]);
  assert.ok(width > 300 && height > 100, `the land is ${width} by ${height} degrees`);
});

step('the last event is described in words', async () => {
  const last = EVENTS[599];
  const row = page.locator('#list li').first();
  assert.equal(await row.locator('.place').textContent(), last.place);
  assert.equal(await row.locator('.magnitude').textContent(), `M ${last.magnitude.toFixed(1)}`);
  assert.equal(await row.locator('time').getAttribute('datetime'), last.time);
  const circle = page.locator('#quakes circle').last();
  assert.equal(await circle.locator('title').textContent(), `M ${last.magnitude.toFixed(1)} · ${last.place}`);
  assert.equal(Number(await circle.getAttribute('cy')), -last.latitude);
  const drawn = await page.locator('#timeline rect').evaluateAll((bars) => bars.map((bar) => bar.height.baseVal.value));
  assert.equal(drawn.reduce((sum, height) => sum + height, 0), 600);
  const strongest = EVENTS.slice(0, 600).reduce((a, b) => (b.magnitude > a.magnitude ? b : a));
  assert.equal(await text('#strongest'), `M ${strongest.magnitude.toFixed(1)}`);
  assert.equal(await text('#strongest-place'), strongest.place);
});

step('later events arrive live', async () => {
  const offset = await page.getAttribute('#offset', 'title');
  await feed('--rate', '100', '--until', '700').succeeds();
  await shows(700);
  assert.ok((await page.getAttribute('#offset', 'title')) > offset, 'the offset has grown');
  assert.equal(await text('#resumed'), '0');
});

step('a restart of the server in the middle of the feed loses nothing and doubles nothing', async () => {
  const feeding = feed('--rate', '150', '--until', '1200');
  await page.waitForFunction(() => Number(document.querySelector('#count').textContent.replace(',', '')) >= 800);
  const { listen } = encke;
  await encke.stop();
  await page.locator('body[data-state="away"]').waitFor();
  encke = await Encke.start({ data, listen });
  await feeding.succeeds();
  await shows(1200);
  await page.locator('body[data-state="live"]').waitFor();
  assert.ok(Number(await text('#resumed')) >= 1);
});

step('a restart with nobody feeding is noticed and survived', async () => {
  const { listen } = encke;
  await encke.stop();
  await page.locator('body[data-state="away"]').waitFor();
  encke = await Encke.start({ data, listen });
  await page.locator('body[data-state="live"]').waitFor();
  await shows(1200);
});

step('a page that was hidden goes on where it was', async () => {
  await setHidden(page, true);
  await feed('--rate', '0', '--until', '1300').succeeds();
  await setHidden(page, false);
  await shows(1300);
});

step('the whole week, fed by two at once, arrives once', async () => {
  await Promise.all([feed('--rate', '0').succeeds(), feed('--rate', '0').succeeds()]);
  await shows(EVENTS.length);
  assert.match(await feed('--rate', '0').succeeds(), new RegExp(`^${EVENTS.length} of ${EVENTS.length} are already there`));
});

step('it looks good on every screen, also without the server', async () => {
  await looks(page, 'quakes');
  const { listen } = encke;
  await encke.stop();
  await page.locator('body[data-state="away"]').waitFor();
  await looks(page, 'quakes-away');
  encke = await Encke.start({ data, listen });
  await page.locator('body[data-state="live"]').waitFor();
});

step('tabs out of sight leave the connections to the one in sight', async () => {
  const tabs = [];
  for (let tab = 0; tab < TABS; tab += 1) {
    const another = await context.newPage();
    await another.goto(page.url());
    await another.locator('body[data-state="live"]').waitFor();
    await setHidden(another, true);
    tabs.push(another);
  }
  await Promise.all(tabs.map((tab) => tab.close()));
});

step('it is one page view all along, without complaints', async () => {
  assert.equal(await page.evaluate(() => window.openedOnce), true);
  assert.deepEqual(complaints, []);
});

/** A test that builds on the ones before it: after one that failed, the rest is left out. */
function step(name, run) {
  test(name, async (context) => {
    if (failed) return context.skip(`"${failed}" failed`);
    failed = name;
    await run();
    failed = undefined;
  });
}

function streamUrl() {
  return `${encke.url}/v1/stream/quakes`;
}

function feed(...args) {
  return new Program('feed.mjs', ['--url', streamUrl(), ...args]);
}

function text(selector) {
  return page.locator(selector).textContent();
}

/** Waits until the page shows `count` events, then checks that they are the first so many, in order and each once. */
async function shows(count) {
  await page.locator('#count', { hasText: new RegExp(`^${count.toLocaleString('en')}$`) }).waitFor();
  const shown = await page.evaluate(() => ({
    circles: [...document.querySelectorAll('#quakes circle')].map((circle) => circle.dataset.id),
    rows: [...document.querySelectorAll('#list li')].map((row) => row.dataset.id),
  }));
  const fed = EVENTS.slice(0, count).map((event) => event.id);
  assert.deepEqual(shown.circles, fed);
  assert.deepEqual(shown.rows, fed.slice(-ROWS_MAX).reverse());
  assert.equal(await text('#repeats'), '0');
}
