// What the tests of `assistant-stream` import as its store in memory: each store is one of Encke, below a prefix of its own. The tests let time pass by
// `now`, and appends fail by `maxChunkBytes`. They expect of a store in memory that a call has its effect before the next one, and that cursors count.

import { createEnckeResumableStreamStore } from '@encke/assistant-stream';

export function createInMemoryResumableStreamStore({ now = () => 0, defaultTtlMs = Infinity, maxChunkBytes = Infinity } = {}) {
  const options = { base: process.env.ENCKE_URL, prefix: `contract/${crypto.randomUUID()}` };
  const store = createEnckeResumableStreamStore(options);
  // A stream expires as if the server did it: `store` does not know.
  const server = createEnckeResumableStreamStore(options);
  const lives = new Map();
  const cursors = [''];
  let last = Promise.resolve();

  /** A method that is called behind the calls before it, at the time of its call. */
  const inOrder = (call, refreshes = false) => (streamId, ...args) => {
    const time = now();
    const result = last.then(async () => {
      if (lives.get(streamId)?.expires <= time && lives.delete(streamId)) await server.delete(streamId);
      const returned = await call(streamId, ...args);
      const life = refreshes && lives.get(streamId);
      if (life) life.expires = time + life.ttlMs;
      return returned;
    });
    last = result.catch(() => {});
    return result;
  };

  const acquiring = (method) => async (streamId, options) => {
    const acquired = await store[method](streamId, options);
    if (acquired === 'producer' || acquired.role === 'producer') lives.set(streamId, { ttlMs: options?.ttlMs ?? defaultTtlMs });
    return acquired;
  };

  async function append(streamId, chunk, lease) {
    if (chunk.byteLength > maxChunkBytes) throw new Error(`Chunk exceeds maxChunkBytes: ${chunk.byteLength}`);
    return store.append(streamId, chunk, lease);
  }

  async function* read(streamId, cursor, signal) {
    try {
      for await (const entry of store.read(streamId, cursors[Number(cursor)], signal)) {
        if (!cursors.includes(entry.cursor)) cursors.push(entry.cursor);
        yield { ...entry, cursor: String(cursors.indexOf(entry.cursor)) };
      }
    } finally {
      await last;
      await new Promise(setImmediate);
    }
  }

  return {
    acquire: inOrder(acquiring('acquire'), true),
    acquireLease: inOrder(acquiring('acquireLease'), true),
    append: inOrder(append, true),
    finalize: inOrder(store.finalize, true),
    read,
    status: inOrder(store.status),
    delete: inOrder(store.delete),
    dispose() {},
  };
}
