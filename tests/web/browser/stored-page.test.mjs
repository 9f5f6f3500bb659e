// What is stored is no page of the server: a stream of HTML runs no script in a browser that opens it, and has no origin.

import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { Encke } from '../encke.mjs';
import { launchChromium } from './chromium.mjs';

const folder = mkdtempSync(join(tmpdir(), 'encke-stored-page-'));
let encke;
let browser;

before(async () => {
  encke = await Encke.start({ data: join(folder, 'data') });
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  await encke?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const PAGE = `<!doctype html><title>quiet</title>
<script>document.title = 'a script ran in ' + self.origin; fetch('/v1/stream/taken', { method: 'PUT' });</script>
<img src="x" onerror="document.title = 'a handler ran'"><body>text`;

test('a stream of HTML runs no script', async () => {
  const url = `${encke.url}/v1/stream/page`;
  const created = await fetch(url, { method: 'PUT', headers: { 'Content-Type': 'text/html' }, body: PAGE });
  assert.equal(created.status, 201);
  const page = await browser.newPage();
  for (const query of ['', '?offset=-1', '?offset=-1&live=long-poll']) {
    await page.goto(url + query);
    assert.equal(await page.locator('body').innerText(), 'text', query);
    assert.equal(await page.title(), 'quiet', query);
  }
  const taken = await fetch(`${encke.url}/v1/stream/taken`);
  assert.equal(taken.status, 404, 'it has made a request of its own');
});
