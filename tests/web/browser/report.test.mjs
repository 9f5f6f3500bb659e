// The page of the experiments, docs/bench/index.html, which the template of `encke-bench report` makes.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { complaintsOf, launchChromium } from './chromium.mjs';
import { looks } from './looks.mjs';

const REPORT = new URL('../../../docs/bench/index.html', import.meta.url).href;

test('the report of the experiments fits every screen and needs nothing but itself', async () => {
  const browser = await launchChromium();
  try {
    const page = await browser.newPage();
    const complaints = complaintsOf(page);
    const requests = [];
    page.on('request', (request) => requests.push(request.url()));
    await page.goto(REPORT);
    await looks(page, 'report', { height: 1400 });
    for (const width of [1280, 1000, 768, 390, 360]) {
      await page.setViewportSize({ width, height: 860 });
      const cut = await page.evaluate(() =>
        [...document.querySelectorAll('tbody th, tbody td')]
          .filter((cell) => cell.getBoundingClientRect().right > innerWidth || cell.scrollWidth > cell.clientWidth)
          .map((cell) => cell.textContent),
      );
      assert.deepEqual(cut, [], `cells that are cut at ${width} px`);
    }
    assert.deepEqual(requests, [REPORT]);
    assert.deepEqual(complaints, []);
  } finally {
    await browser.close();
  }
});
