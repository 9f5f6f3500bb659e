import { Backoff, sleep } from './backoff.js';
import { contentOf, encodeContent } from './content.js';
import { EnckeError } from './error.js';
import type { Expected } from './expected.js';
import { never, Origin, type OriginOptions, segment } from './origin.js';
import type { Content } from './types.js';
import { Worker, type Handler, type WorkerOptions } from './worker.js';

/** Settings of a pool (docs/pools.md, Creating a pool). */
export interface PoolSettings {
  type: 'round_robin' | 'random' | 'hash' | 'direct' | 'claim';
  size?: number;
  size_max?: number;
  ack_ms?: number;
  attempts?: number;
  retry_ms?: number;
  retry_ms_max?: number;
  in_flight?: number;
  job_bytes_max?: number;
  waiting_max?: number;
  events?: boolean;
}

export interface PostOptions {
  /** By the value by default: JSON, `text/plain` for strings, `application/octet-stream` for bytes. It decides what readers get. */
  contentType?: string;
  /** Selects the worker in a `hash` pool. */
  key?: string;
  /** Selects the worker in a `direct` pool. */
  slot?: number;
  /** Refuse the job with `nobody_connected` unless a worker that may take it is connected. */
  ifConnected?: boolean;
  signal?: AbortSignal;
}

/** A job, with the token by which its poster sees it. */
export interface PostedJob {
  job: number;
  token: string;
}

export interface JobResult {
  type?: string;
  data?: Content;
  /** Of data that is not UTF-8, and of large texts that are shorter so. */
  encoding?: 'base64';
}

export type JobState = { job: number; attempts: number } & (
  | { state: 'waiting'; not_before_ms?: number }
  | { state: 'running'; worker: string; deadline_ms: number }
  | { state: 'done'; result?: JobResult }
  | { state: 'dead'; reason?: string }
);

export interface WaitOptions {
  signal?: AbortSignal;
}

/** The most that a read of the last messages takes. */
const RESULTS_READ_MAX = 10_000;
const POLL_FIRST_MS = 100;
const POLL_LAST_MS = 2_000;

/** Errors after which a job may be there, `unconfirmed` unless it has Retry-After (docs/reference.md, Errors). */
const UNCERTAIN = ['internal', 'log_failed', 'no_dispatcher', 'unconfirmed'];

const CREATED: Expected = { statuses: [200, 201], type: 'application/json' };
const POSTED: Expected = { statuses: [202], fields: ['Job-Id'] };
const STATE: Expected = { statuses: [200], type: 'application/json' };

/** A pool of a server. */
export class Pool {
  readonly #name: string;
  readonly #origin: Origin;

  constructor(name: string, options: OriginOptions = {}) {
    this.#name = name;
    this.#origin = new Origin(options);
  }

  /** Creates the pool; false if it is there with the same settings. With others the error is `config_differs`. */
  async create(settings: PoolSettings, { signal = never() }: WaitOptions = {}): Promise<boolean> {
    const response = await this.#origin.persist(this.#url(), { method: 'PUT', body: JSON.stringify(settings) }, { signal, expected: CREATED });
    return response.status === 201;
  }

  /**
   * Posts a job. A server that has no room is asked again until `signal`. If the connection is cut before the response, the call rejects, and
   * the job may be there: posting it again may do it twice. The same holds after an error with `mayBeDone`.
   */
  async post(data: Content, { contentType, key, slot, ifConnected, signal = never() }: PostOptions = {}): Promise<PostedJob> {
    const { body, type } = await encodeContent(data, contentType);
    const url = this.#url();
    if (key !== undefined) url.searchParams.set('key', key);
    if (slot !== undefined) url.searchParams.set('slot', String(slot));
    if (ifConnected) url.searchParams.set('if', 'connected');
    for (const backoff = new Backoff(); ; ) {
      try {
        const response = await this.#origin.request(url, { method: 'POST', headers: { 'Content-Type': type }, body, signal }, POSTED);
        return await response.json();
      } catch (error) {
        if (!(error instanceof EnckeError)) throw error;
        const { status, code, retryAfter } = error;
        const isUncertain = UNCERTAIN.includes(code) && !(code === 'unconfirmed' && retryAfter !== undefined);
        error.mayBeDone ||= isUncertain || error.isForeign || (code === 'http' && status >= 500);
        if (error.mayBeDone || ![429, 503].includes(status) || code === 'nobody_connected') throw error;
        await backoff.wait(signal, retryAfter && retryAfter * 1_000);
      }
    }
  }

  /** The state of a job. The server forgets finished jobs after a while (`unknown_job`); their results stay in `pool/NAME/results`. */
  async result({ job, token }: PostedJob, { signal = never() }: WaitOptions = {}): Promise<JobState> {
    const response = await this.#origin.persist(this.#url(`/job/${job}`), { headers: { 'Job-Token': token } }, { signal, expected: STATE });
    return response.json();
  }

  /**
   * The result of a job when it is done. Rejects with `job_failed` when all attempts have failed. A result that the server has no more in memory,
   * as after its restart, is looked for among the last of the stream of results, which needs the grant `read`.
   */
  async wait(job: PostedJob, { signal = never() }: WaitOptions = {}): Promise<Content> {
    for (let ms = POLL_FIRST_MS; ; ms = Math.min(POLL_LAST_MS, ms * 1.5)) {
      const state = await this.result(job, { signal });
      if (state.state === 'done') return state.result ? contentOf(state.result) : this.#storedResult(job.job, signal);
      if (state.state === 'dead') throw new EnckeError(502, 'job_failed', state.reason ?? 'all attempts have failed');
      await sleep(ms * (0.5 + Math.random() / 2), signal);
    }
  }

  /** Takes jobs under a name, which one worker has at a time, and calls `handler` for each. */
  worker(name: string, handler: Handler, options: WorkerOptions = {}): Worker {
    return new Worker(this.#origin, this.#url(), name, handler, options);
  }

  async #storedResult(job: number, signal: AbortSignal): Promise<Content> {
    const url = this.#origin.stream(`pool/${this.#name}/results`);
    url.search = `last=${RESULTS_READ_MAX}`;
    const response = await this.#origin.persist(url, {}, { signal, expected: STATE });
    const results: (JobResult & { job: number })[] = await response.json();
    const result = results.findLast((result) => result.job === job);
    if (!result) throw new EnckeError(410, 'no_result', `job ${job} is done, and its result is not among the last ${RESULTS_READ_MAX}`);
    return contentOf(result);
  }

  #url(path = ''): URL {
    return this.#origin.path(`/v1/pool/${segment(this.#name)}${path}`);
  }
}
