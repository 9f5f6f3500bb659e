/**
 * `createResumableStreamContext` of the package `resumable-stream`, with answers in streams of Encke. `@encke/resumable-stream/pubsub` has the publisher and
 * the subscriber that `resumable-stream/generic` takes.
 */
export { createResumableStreamContext, type ResumableStreamContext, type ResumableStreamContextOptions } from './context.js';
export type { ServerOptions } from './claim/request.js';
