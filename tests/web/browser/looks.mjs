// How a page looks: it fits the screen, its text can be read, and pictures of it are in target/screenshots.

import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const TARGET = process.env.CARGO_TARGET_DIR ?? fileURLToPath(new URL('../../../target', import.meta.url));
/** Where pictures of pages are. */
export const SCREENSHOTS = join(TARGET, 'screenshots');
/** Width in pixels and colours; those with a name become pictures. */
const VIEWS = [
  { name: 'wide', width: 1280, colorScheme: 'light' },
  { name: 'dark', width: 1280, colorScheme: 'dark' },
  { name: 'phone', width: 390, colorScheme: 'light' },
  { name: 'phone-dark', width: 390, colorScheme: 'dark' },
  { width: 768, colorScheme: 'light' },
  { width: 360, colorScheme: 'light' },
];
/** WCAG 2.2, 1.4.3 (AA), for text of any size. */
const CONTRAST_MIN = 4.5;

/** Checks that `page` fits each width and that its text has contrast, and takes the pictures. */
export async function looks(page, picture, { height = 860, fullPage = false } = {}) {
  mkdirSync(SCREENSHOTS, { recursive: true });
  for (const { name, width, colorScheme } of VIEWS) {
    const view = `${picture} at ${width} px in ${colorScheme} colours`;
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    await page.setViewportSize({ width, height });
    assert.deepEqual(await page.evaluate(outOfSight), [], `${view}: out of sight to the right`);
    assert.deepEqual(await page.evaluate(faintTexts, CONTRAST_MIN), [], `${view}: contrast below ${CONTRAST_MIN}`);
    if (name) await page.screenshot({ path: join(SCREENSHOTS, `${picture}-${name}.png`), fullPage, animations: 'disabled' });
  }
}

/** In the page: what makes it wider than the window. */
function outOfSight() {
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth <= clientWidth) return [];
  const wide = [...document.querySelectorAll('body *')].filter((one) => one.getBoundingClientRect().right > clientWidth);
  return [`${scrollWidth - clientWidth} px`, ...wide.map((one) => one.outerHTML.slice(0, 80))];
}

/** In the page: the visible texts, without those of drawings, whose colour is too close to the one behind them. */
function faintTexts(contrastMin) {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const ratios = new Map();

  const luminance = (colours) => {
    for (const colour of colours) {
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
    }
    const [red, green, blue] = [...canvas.getImageData(0, 0, 1, 1).data].map((value) => {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (behind, text) => {
    const [dark, light] = [luminance(behind), luminance([...behind, text])].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };

  const faint = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const content = texts.currentNode.data.trim();
    if (!content || element.closest('svg, script, style') || !element.checkVisibility()) continue;
    const behind = ['white'];
    for (let one = element; one; one = one.parentElement) behind.splice(1, 0, getComputedStyle(one).backgroundColor);
    const { color } = getComputedStyle(element);
    const key = [...behind, color].join(' ');
    if (!ratios.has(key)) ratios.set(key, contrast(behind, color));
    if (ratios.get(key) < contrastMin) faint.push(`${ratios.get(key).toFixed(2)}: ${content.slice(0, 40)}`);
  }
  return [...new Set(faint)];
}
