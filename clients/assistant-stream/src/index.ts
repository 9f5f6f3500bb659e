/** A store for `createResumableStreamContext` of `assistant-stream/resumable` over streams of Encke. */
export { createEnckeResumableStreamStore, type EnckeResumableStreamStoreOptions } from './store.js';
export type { ServerOptions } from './claim/request.js';
