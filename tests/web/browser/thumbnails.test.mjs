// examples/thumbnails in a real browser: images that the page posts come back small, made by three workers, though one of
// them dies with a job in its hands.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { chromium } from 'playwright-core';
import { Encke } from '../encke.mjs';
import { Program } from './program.mjs';

const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
const CHROMIUM_ARGS = ['--headless', '--no-sandbox', '--disable-gpu', '--no-first-run', '--disable-background-networking'];
const EXAMPLE = fileURLToPath(new URL('../../../examples/thumbnails/', import.meta.url));
const SHOWN_MS_MAX = 40_000;

const data = mkdtempSync(join(tmpdir(), 'encke-thumbnails-'));
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
  browser = await chromium.launch({ executablePath: CHROMIUM, args: CHROMIUM_ARGS });
  page = await browser.newPage();
  page.setDefaultTimeout(SHOWN_MS_MAX);
  page.on('pageerror', (error) => complaints.push(String(error)));
});

after(async () => {
  await browser?.close();
  for (const program of programs) program.child.kill('SIGKILL');
  await encke?.stop();
  rmSync(data, { recursive: true, force: true });
});

test('twelve images are made small by three workers', { timeout: 120_000 }, async () => {
  const site = start('serve.mjs', '--listen', '127.0.0.1:0', '--encke', encke.url);
  const [, address] = await site.prints(/(http:\/\/\S+)/);
  await page.goto(address);
  await page.click('#samples');
  await shows('#waiting', '12');
  // One takes a job and dies with it.
  const doomed = worker('doomed', '--pause', '600000');
  await shows('#running', '1');
  doomed.child.kill('SIGKILL');
  for (const name of ['anna', 'bob', 'cleo']) worker(name, '--pause', '50');
  await shows('#done', '12');
  await page.waitForFunction(() => document.querySelectorAll('#jobs img').length === 12);
  const sizes = await page.evaluate(() =>
    Promise.all([...document.querySelectorAll('#jobs img')].map(async (image) => {
      await image.decode();
      return [image.naturalWidth, image.naturalHeight];
    })),
  );
  assert.deepEqual(sizes, Array(12).fill([128, 96]));
  const pool = await fetch(`${encke.url}/v1/pool/thumbnails`).then((answer) => answer.json());
  assert.equal(pool.done, 12);
  assert.equal(pool.retried, 1);
  const done = pool.workers.filter((worker) => worker.done > 0).map((worker) => worker.name);
  assert.deepEqual(done.sort(), ['anna', 'bob', 'cleo']);
  assert.deepEqual(complaints, []);
});
