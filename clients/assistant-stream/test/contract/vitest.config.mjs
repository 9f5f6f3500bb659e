// Runs the tests that are in the package `assistant-stream`, with another store in place of its store in memory.

import { fileURLToPath } from 'node:url';

const WEB = new URL('../../../../tests/web/node_modules/', import.meta.url);
const path = (name, base = import.meta.url) => fileURLToPath(new URL(name, base));

export default {
  root: path('../../node_modules/assistant-stream/src/resumable/'),
  resolve: {
    alias: [
      { find: /^.*\/InMemoryResumableStreamStore$/, replacement: path('store.mjs') },
      { find: /^\.\/errors$/, replacement: 'assistant-stream/resumable' },
      { find: /^vitest$/, replacement: path('vitest/dist/index.js', WEB) },
    ],
  },
  test: {
    include: ['**/{InMemoryResumableStreamStore,ResumableStreamContext,createResumableAssistantStreamResponse,integration}.test.ts'],
    exclude: [],
    server: { deps: { inline: [/assistant-stream/] } },
    setupFiles: [path('patience.mjs')],
    testTimeout: 60_000,
    reporters: ['json'],
  },
};
