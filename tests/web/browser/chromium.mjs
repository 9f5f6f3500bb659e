// Debian's Chromium, without a window.

import { chromium } from 'playwright-core';

const PATH = process.env.CHROMIUM ?? '/usr/bin/chromium';
/** No sandbox (tests run as root in containers), no display, and connections to this machine only. */
const ARGS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Starts the browser, with further flags for the tests of one file. */
export const launchChromium = (flags = []) => chromium.launch({ executablePath: PATH, args: [...ARGS, ...flags] });

/** What `page` complains about from now on. Requests that fail while a server is away, and those that it refuses, belong to the tests. */
export function complaintsOf(page) {
  const complaints = [];
  page.on('pageerror', (error) => complaints.push(String(error)));
  page.on('console', (message) => {
    if (message.type() === 'error' && !EXPECTED.test(message.text())) complaints.push(message.text());
  });
  return complaints;
}

const EXPECTED = /ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|404|413/;

/** Tells the page what a browser tells it when its tab goes out of sight and comes back. */
export function setHidden(page, hidden) {
  return page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', { value, configurable: true });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
}
