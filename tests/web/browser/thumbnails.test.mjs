// examples/thumbnails in a real browser: images that the page posts come back small, made by three workers, though
// another dies with a job in its hands; and what is no image is shown as a dead letter.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Encke } from '../encke.mjs';
import { launchChromium } from './chromium.mjs';
import { Program } from './program.mjs';

const EXAMPLE = fileURLToPath(new URL('../../../examples/thumbnails/', import.meta.url));
const SHOWN_MS_MAX = 40_000;

const data = mkdtempSync(join(tmpdir(), 'encke-thumbnails-'));
const files = mkdtempSync(join(tmpdir(), 'encke-images-'));
const complaints = [];
const programs = [];
let encke;
let browser;
let page;

function start(script, ...args) {
  const program = new Program(script, args, EXAMPLE);
  programs.push(program);
  return program;
}

const worker = (name, ...args) => start('worker.mjs', name, '--pool', `${encke.url}/v1/pool/thumbnails`, ...args);

const shows = (selector, text) =>
  page.waitForFunction(([selector, text]) => document.querySelector(selector).textContent === text, [selector, text]);

before(async () => {
  encke = await Encke.start({ data });
  browser = await launchChromium();
  page = await browser.newPage();
  page.setDefaultTimeout(SHOWN_MS_MAX);
  page.on('pageerror', (error) => complaints.push(String(error)));
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
    const listed = [...document.querySelectorAll('#workers li')].map((item) => item.textContent.split(':')[0]);
    return names.every((name) => listed.includes(name));
  }, names);

/** Posts a file with the example's own program. */
const submit = (file, content) => {
  const path = join(files, file);
  writeFileSync(path, content);
  return start('submit.mjs', path, '--pool', `${encke.url}/v1/pool/thumbnails`).succeeds();
};

test('images are made small by three workers, one after the death of its first worker', { timeout: 120_000 }, async () => {
  const site = start('serve.mjs', '--listen', '127.0.0.1:0', '--encke', encke.url);
  const [, address] = await site.prints(/(http:\/\/\S+)/);
  await page.goto(address);
  // One takes a job and dies with it.
  const doomed = worker('doomed', '--pause', '600000');
  await lists('doomed');
  await submit('first.svg', '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="480"><circle r="99"/></svg>');
  await shows('#running', '1');
  doomed.child.kill('SIGKILL');
  for (const name of ['anna', 'bob', 'cleo']) worker(name, '--pause', '50');
  await lists('anna', 'bob', 'cleo');
  await page.click('#samples');
  await shows('#done', '13');
  await page.waitForFunction(() => document.querySelectorAll('#jobs img').length === 13);
  const sizes = await page.evaluate(() =>
    Promise.all([...document.querySelectorAll('#jobs img')].map(async (image) => {
      await image.decode();
      return [image.naturalWidth, image.naturalHeight];
    })),
  );
  assert.deepEqual(sizes, Array(13).fill([128, 96]));
  const pool = await fetch(`${encke.url}/v1/pool/thumbnails`).then((answer) => answer.json());
  assert.equal(pool.done, 13);
  assert.equal(pool.retried, 1);
  const done = pool.workers.filter((worker) => worker.done > 0).map((worker) => worker.name);
  assert.deepEqual(done.sort(), ['anna', 'bob', 'cleo']);
});

test('what is no image ends among the dead letters, with the reason', { timeout: 60_000 }, async () => {
  const [, job] = /is job (\d+)/.exec(await submit('notes.txt', 'words'));
  await shows('#dead', '1');
  await page.waitForFunction(() => document.querySelectorAll('#letters li').length === 1);
  const letter = await page.textContent('#letters li');
  assert.match(letter, new RegExp(`^#${job}, tried 3 times: refused: .*image format`));
  assert.deepEqual(complaints, []);
});
