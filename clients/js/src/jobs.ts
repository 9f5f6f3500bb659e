/**
 * Pools (docs/pools.md): `Pool` creates a pool, posts jobs and waits for their results; its `worker` takes jobs and reports on them.
 */
export { Pool, type JobResult, type JobState, type PoolSettings, type PostedJob, type PostOptions, type WaitOptions } from './pool.js';
export { RetryLater, type Handler, type Job, Worker, type WorkerOptions } from './worker.js';
export { EnckeError } from './error.js';
export type { OriginOptions, Token } from './origin.js';
