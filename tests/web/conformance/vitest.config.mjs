import { defineConfig } from 'vitest/config';

/** The longest a long poll may stay open; bounds the tests that wait for one to end. */
const LONG_POLL_MS_MAX = 30_000;

export default defineConfig({
  test: {
    root: import.meta.dirname,
    include: ['suite.test.mjs'],
    setupFiles: [
      'patience.mjs',
      ...(process.env.CONFORMANCE_HTTP2 ? ['http2.mjs'] : []),
      ...(process.env.CONFORMANCE_KEY ? ['access.mjs'] : []),
      ...(process.env.CONFORMANCE_KILLER ? ['kills.mjs'] : []),
    ],
    // One test after another: many measure time-to-live in steps of a second, and fail beside busy neighbours.
    sequence: { concurrent: false },
    // Two of the tests that wait for a long poll have no time-out of their own.
    testTimeout: LONG_POLL_MS_MAX + 5_000,
    provide: {
      suite: { baseUrl: process.env.CONFORMANCE_URL, subscriptions: true, longPollTimeoutMs: LONG_POLL_MS_MAX },
    },
  },
});
