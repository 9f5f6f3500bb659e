// examples/thumbnails in a real browser: images that the page posts come back small, made by three workers, though
// another dies with a job in its hands; and what is no image is shown as a dead letter.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { complaintsOf, launchChromium, setHidden } from './chromium.mjs';
import { looks } from './looks.mjs';
import { Program } from './program.mjs';

const EXAMPLE = fileURLToPath(new URL('../../../examples/thumbnails/', import.meta.url));
const SHOWN_MS_MAX = 40_000;
const SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="480"><circle r="99"/></svg>';
/** More tabs than a browser opens connections to one server. */
const TABS = 8;

const data = mkdtempSync(join(tmpdir(), 'encke-thumbnails-'));
const files = mkdtempSync(join(tmpdir(), 'encke-images-'));
const programs = [];
let encke;
let browser;
let context;
let page;
let complaints;

function start(script, ...args) {
  const program = new Program(script, args, EXAMPLE);
  programs.push(program);
  return program;
}

const worker = (name, ...args) => start('worker.mjs', name, '--pool', `${encke.url}/v1/pool/thumbnails`, ...args);

const shows = (selector, text) =>
  page.waitForFunction(([selector, text]) => document.querySelector(selector)?.textContent === text, [selector, text]);

before(async () => {
  encke = await Encke.start({ data, listen: await fixedAddress() });
  browser = await launchChromium();
  context = await browser.newContext();
  page = await context.newPage();
  page.setDefaultTimeout(SHOWN_MS_MAX);
  complaints = complaintsOf(page);
});

after(async () => {
  await browser?.close();
  for (const program of programs) program.child.kill('SIGKILL');
  await encke?.stop();
  for (const directory of [data, files]) rmSync(directory, { recursive: true, force: true });
});

/** Waits until the page lists workers that are there. */
const lists = (...names) =>
  page.waitForFunction((names) => {
    const listed = [...document.querySelectorAll('#workers li:not([data-state="gone"]) b')].map((name) => name.textContent);
    return names.every((name) => listed.includes(name));
  }, names);

const images = () => page.locator('[data-lane="done"] img');

/** Posts a file with the example's own program. */
const submit = (file, content) => {
  const path = join(files, file);
  writeFileSync(path, content);
  return start('submit.mjs', path, '--pool', `${encke.url}/v1/pool/thumbnails`).succeeds();
};

/** Counts in the page how often a card of the lane "done" changes its height: its event and its image come in any order. */
function countJumps() {
  window.jumps = [];
  const heights = new WeakMap();
  const look = () => {
    for (const card of document.querySelectorAll('[data-lane="done"] li')) {
      const [before, now] = [heights.get(card), card.offsetHeight];
      heights.set(card, now);
      if (before !== undefined && before !== now) window.jumps.push(`${card.textContent}: ${before} px, then ${now} px`);
    }
  };
  new MutationObserver(look).observe(document.querySelector('[data-lane="done"]'), { childList: true, subtree: true, characterData: true });
}

test('images are made small by three workers, one after the death of its first worker', { timeout: 120_000 }, async () => {
  const site = start('serve.mjs', '--listen', '127.0.0.1:0', '--encke', encke.url);
  const [, address] = await site.prints(/(http:\/\/\S+)/);
  await page.goto(address);
  await page.locator('body[data-state="live"]').waitFor();
  assert.equal(await page.locator('.empty:visible').count(), 5, 'the workers and the lanes say that they are empty');
  await looks(page, 'thumbnails-empty');
  // One takes a job and dies with it.
  const doomed = worker('doomed', '--pause', '600000');
  await lists('doomed');
  const [, first] = /is job (\d+)/.exec(await submit('first.svg', SVG));
  await shows('#working', '1');
  await shows('[data-lane="working"] li', `#${first}doomed`);
  doomed.child.kill('SIGKILL');
  for (const name of ['anna', 'bob', 'cleo']) worker(name, '--pause', '50');
  await lists('anna', 'bob', 'cleo');
  await page.evaluate(countJumps);
  await page.click('#samples');
  await shows('#done', '13');
  await images().nth(12).waitFor();
  const sizes = await images().evaluateAll((images) =>
    Promise.all(images.map(async (image) => {
      await image.decode();
      return [image.naturalWidth, image.naturalHeight];
    })),
  );
  assert.deepEqual(sizes, Array(13).fill([128, 96]));
  assert.deepEqual(await page.evaluate(() => window.jumps), [], 'a card has its height from its beginning');
  const pool = await fetch(`${encke.url}/v1/pool/thumbnails`).then((answer) => answer.json());
  assert.equal(pool.done, 13);
  assert.equal(pool.retried, 1);
  const done = pool.workers.filter((worker) => worker.done > 0).map((worker) => worker.name);
  assert.deepEqual(done.sort(), ['anna', 'bob', 'cleo']);
});

test('what is no image ends among the dead letters, with the reason', { timeout: 60_000 }, async () => {
  const [, job] = /is job (\d+)/.exec(await submit('notes.txt', 'words'));
  await shows('#failed', '1');
  const letter = page.locator('[data-lane="failed"] li', { hasText: 'attempts' });
  assert.match(await letter.textContent(), new RegExp(`^#${job}3 attempts, refused: .*image format`));
});

test('what the server refuses is said', async () => {
  const large = { name: 'large.png', mimeType: 'image/png', buffer: Buffer.alloc(2 * 1024 * 1024) };
  await page.setInputFiles('#files', [large]);
  await page.locator('#problem', { hasText: /^large\.png was not sent: .+/ }).waitFor();
});

test('it looks good on every screen', async () => {
  await looks(page, 'thumbnails');
});

test('kill -9 of the server is shown and survived, each job on one card', { timeout: 60_000 }, async () => {
  const { listen } = encke;
  await encke.kill();
  await page.locator('body[data-state="away"]').waitFor();
  assert.ok(await page.locator('#away').isVisible());
  await looks(page, 'thumbnails-away');
  encke = await Encke.start({ data, listen });
  await page.locator('body[data-state="live"]').waitFor();
  assert.ok(await page.locator('#away').isHidden());
  await submit('second.svg', SVG);
  await shows('#done', '14');
  await images().nth(13).waitFor();
  const jobs = await page.locator('[data-job]').evaluateAll((cards) => cards.map((card) => card.dataset.job));
  assert.equal(jobs.length, 15);
  assert.equal(new Set(jobs).size, 15);
});

test('tabs out of sight leave the connections to the one in sight, and catch up', { timeout: 60_000 }, async () => {
  const tabs = [];
  for (let tab = 0; tab < TABS; tab += 1) {
    const another = await context.newPage();
    await another.goto(page.url());
    await another.locator('body[data-state="live"]').waitFor();
    await another.locator('[data-job]').nth(14).waitFor();
    await setHidden(another, true);
    tabs.push(another);
  }
  await submit('third.svg', SVG);
  await images().nth(14).waitFor();
  assert.equal(await tabs[0].locator('[data-job]').count(), 15);
  await setHidden(tabs[0], false);
  await tabs[0].locator('[data-lane="done"] img').nth(14).waitFor();
  assert.equal(await tabs[0].locator('[data-job]').count(), 16);
  await Promise.all(tabs.map((tab) => tab.close()));
  assert.deepEqual(complaints, []);
});
