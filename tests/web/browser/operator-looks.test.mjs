// How the page for operators looks, and whether people without a mouse or without eyes can use it: axe-core finds nothing serious, in
// light and dark colours and on a small screen.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { waitFor as until } from '../wait.mjs';
import { launchChromium } from './chromium.mjs';
import { SCREENSHOTS, looks } from './looks.mjs';
import { SECTIONS, must, openPage, startGuarded, subscribe } from './operator-page.mjs';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core'), 'utf8');
const SERIOUS = ['serious', 'critical'];

let server;
let browser;
const clients = [];

before(async () => {
  server = await startGuarded();
  browser = await launchChromium();
  const { url } = server.encke;
  for (const name of ['chat/general', 'chat/a-name-that-is-long-enough-to-need-more-than-one-line-on-a-phone', 'orders']) {
    await must('PUT', `${url}/v1/stream/${name}`, { headers: { 'Content-Type': 'application/json', 'Encke-Metadata': '{"team":"blue"}' } });
    for (let number = 0; number < 5; number++) await must('POST', `${url}/v1/stream/${name}`, { json: { number } });
    clients.push(subscribe(`${url}/v1/stream/${name}?offset=-1&live=sse`));
  }
  await must('PUT', `${url}/v1/pool/thumbs`, { json: { type: 'claim', attempts: 1 } });
  const worker = subscribe(`${url}/v1/pool/thumbs/work?worker=anna`, { Accept: 'text/event-stream' });
  clients.push(worker);
  await must('POST', `${url}/v1/pool/thumbs`, { body: 'cat.png', headers: { 'Content-Type': 'text/plain' } });
  await until('the worker has a job', () => /^id: (\d+)$/m.test(worker.text));
  const job = /^id: (\d+)$/m.exec(worker.text)[1];
  await must('POST', `${url}/v1/pool/thumbs/job/${job}/refuse?attempt=1`, { body: 'no such cat' });
  await fetch(`${url}/v1/stream/missing`);
});

after(async () => {
  for (const client of clients) client.close();
  await browser?.close();
  await server?.stop();
});

/** What axe-core finds that keeps people out. */
async function findings(page) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  const found = violations.filter(({ impact }) => SERIOUS.includes(impact));
  return found.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.html.slice(0, 160)}`));
}

/** Each view: its name in pictures, the part of the URL behind `#`, and a text that is there when it is complete. */
const VIEWS = [
  ['server', 'server', 'shard-0'],
  ['connections', 'connections', 'chat/general'],
  ['streams', 'streams', 'orders'],
  ['stream', 'streams?name=orders', '"team": "blue"'],
  ['pools', 'pools', 'thumbs'],
  ['pool', 'pools?name=thumbs', 'no such cat'],
  ['access', 'access', 'Why was this refused?'],
  ['configuration', 'configuration', 'admin-listen'],
  ['machine', 'machine', 'in no fleet'],
];

test('the views are those of the navigation', async () => {
  const { page } = await openPage(browser, server.encke.operators);
  assert.deepEqual(await page.getByRole('navigation').getByRole('link').allInnerTexts(), SECTIONS);
});

for (const [name, hash, text] of VIEWS) {
  test(`the view ${name} fits any screen and keeps nobody out`, async () => {
    const { page, complaints } = await openPage(browser, server.encke.operators, hash);
    await page.getByText(text).first().waitFor();
    if (name === 'server') {
      const plot = page.getByRole('img', { name: /^Requests: / });
      await until('the plots have lines', async () => /^M.*L/.test(await plot.locator('path').first().getAttribute('d')));
    }
    if (name === 'machine') {
      await page.getByRole('button', { name: 'Examine' }).click();
      await page.getByText(/The machine (suits|does not suit)/).waitFor();
    }
    if (name === 'stream') {
      await page.getByRole('button', { name: 'Follow' }).click();
      await page.getByRole('listitem').filter({ hasText: '{"number":4}' }).waitFor();
    }
    await looks(page, `operators-${name}`, { fullPage: true });
    for (const [width, colorScheme] of [[1280, 'light'], [1280, 'dark'], [360, 'light']]) {
      await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
      await page.setViewportSize({ width, height: 800 });
      assert.deepEqual(await findings(page), [], `${name} at ${width} px in ${colorScheme} colours`);
      if (width === 360) await page.screenshot({ path: join(SCREENSHOTS, `operators-${name}-360.png`), animations: 'disabled' });
    }
    assert.deepEqual(complaints, []);
  });
}

test('a dialog keeps nobody out', async () => {
  const { page } = await openPage(browser, server.encke.operators, 'streams?name=orders');
  await page.getByRole('button', { name: 'Delete…' }).click();
  await page.getByRole('dialog').waitFor();
  assert.deepEqual(await findings(page), []);
});
