import { sleep } from './backoff.js';
import { decodeContent, encodeContent } from './content.js';
import { EnckeError, NOT_ENCKE } from './error.js';
import type { Expected } from './expected.js';
import { never, type Origin, queryOf } from './origin.js';
import type { ConnectionState, Content } from './types.js';

/** An attempt at a job. */
export interface Job {
  job: number;
  attempt: number;
  token: string;
  key?: string;
  type: string;
  /** JSON, a string, or bytes, by the content type. */
  data: Content;
  /** Aborted when the attempt is over: another worker has the job. */
  signal: AbortSignal;
}

/** Does a job. What it returns is the result; if it throws, the attempt is refused with the message. */
export type Handler = (job: Job) => Content | Promise<Content>;

export interface WorkerOptions {
  /** Jobs at a time, 1 by default; the pool's `in_flight` bounds it, too. */
  concurrency?: number;
  /** Seconds for which each request waits for a job. */
  wait?: number;
  /** Seconds by which the time of an attempt is extended, again and again, while its handler runs. */
  extend?: number;
  /** The content type of results; by the value by default. */
  contentType?: string;
  /** Something went wrong with an attempt, or with a request that is made again. */
  onError?: (error: unknown, job?: Job) => void;
}

/** Thrown by a handler: the next attempt shall begin after some seconds, and not by the settings of the pool. */
export class RetryLater extends Error {
  readonly seconds: number;

  constructor(message: string, seconds: number) {
    super(message);
    this.seconds = seconds;
  }
}

const WAIT_S = 30;
const EXTEND_S = 30;
/** How much longer than asked for a response may take. */
const LATE_MS = 15_000;
const EXTEND_MS_MIN = 200;
/** The time between two polls of which the first had no job, if the server does not wait. */
const POLL_MS_MIN = 1_000;

const JOB_OR_NONE: Expected = { statuses: [200, 204] };
const REPORTED: Expected = { statuses: [204] };
const EXTENDED: Expected = { statuses: [200], type: 'application/json' };

/** Takes jobs of a pool by polling, so that it can stop without losing one. */
export class Worker {
  /** Resolves when `stop()` has let the last job end; rejects if the server refuses the worker, as when another has its name. */
  readonly stopped: Promise<void>;

  readonly #origin: Origin;
  readonly #pool: URL;
  readonly #name: string;
  readonly #handler: Handler;
  readonly #options: WorkerOptions;
  readonly #stopping = new AbortController();
  readonly #running = new Set<Promise<void>>();

  constructor(origin: Origin, pool: URL, name: string, handler: Handler, options: WorkerOptions) {
    this.#origin = origin;
    this.#pool = pool;
    this.#name = name;
    this.#handler = handler;
    this.#options = options;
    this.stopped = this.#work().finally(() => Promise.all(this.#running));
  }

  /** Takes no more jobs, and resolves when those that run are done and acknowledged. */
  stop(): Promise<void> {
    this.#stopping.abort();
    return this.stopped;
  }

  async #work(): Promise<void> {
    const { signal } = this.#stopping;
    const { concurrency = 1 } = this.#options;
    while (!signal.aborted) {
      if (this.#running.size >= concurrency) {
        await Promise.race(this.#running);
        continue;
      }
      const begun = performance.now();
      if (await this.#take(await this.#poll())) continue;
      await sleep(begun + POLL_MS_MIN - performance.now(), signal).catch(() => {}); // It was stopped.
    }
  }

  /** Runs the job of a response. Returns false if there is none. */
  async #take(response?: Response): Promise<boolean> {
    if (response?.status !== 200) return false;
    try {
      const job = await jobOf(response);
      const run = this.#run(job, leftMs(Number(response.headers.get('Job-Deadline')), response)).finally(() => this.#running.delete(run));
      this.#running.add(run);
      return true;
    } catch (error) {
      this.#options.onError?.(error); // The response was cut: the server gives the job to another worker, or to this one again.
      return false;
    }
  }

  /** Waits for a job. A request whose response has begun is not cut off by a stop, because it has a job. */
  async #poll(): Promise<Response | undefined> {
    const { wait = WAIT_S, onError } = this.#options;
    const poll = new AbortController();
    const abort = () => poll.abort();
    const timer = setTimeout(abort, wait * 1_000 + LATE_MS);
    const { signal } = this.#stopping;
    signal.addEventListener('abort', abort);
    const url = new URL(`${this.#pool}/work`);
    url.searchParams.set('worker', this.#name);
    url.searchParams.set('wait', String(wait));
    try {
      const onState = (state: ConnectionState, error: unknown) => void (state === 'away' && onError?.(error));
      return await this.#origin.persist(url, { method: 'POST' }, { signal: poll.signal, expected: JOB_OR_NONE, onState });
    } catch (error) {
      if (!poll.signal.aborted) throw error;
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', abort);
    }
    return undefined;
  }

  async #run({ abort, ...job }: Job & { abort: (reason: unknown) => void }, leftMs: number): Promise<void> {
    const done = new AbortController();
    void this.#extend(job, leftMs, done.signal, abort);
    try {
      let report: () => Promise<unknown>;
      try {
        const { body, type } = await encodeContent(await this.#handler(job), this.#options.contentType);
        report = () => this.#report(job, 'ack', {}, body, type);
      } catch (error) {
        const after: Record<string, string> = error instanceof RetryLater ? { after: String(error.seconds) } : {};
        report = () => this.#report(job, 'refuse', after, error instanceof Error ? error.message : String(error), 'text/plain');
      }
      await report();
    } catch (error) {
      this.#options.onError?.(error, job); // Such as `attempt_over`: another worker has the job.
    } finally {
      done.abort();
    }
  }

  /** Extends the attempt until it is done, each time at about half of what is left. */
  async #extend(job: Job, leftMs: number, done: AbortSignal, abort: (reason: unknown) => void): Promise<void> {
    const { extend = EXTEND_S } = this.#options;
    for (;;) {
      // An attempt with more time than an extension gives is not made shorter.
      const wait = Math.max(leftMs - (extend * 2_000) / 3, leftMs / 2, EXTEND_MS_MIN);
      try {
        await sleep(wait, done);
        await this.#report(job, 'extend', { by: String(extend) }, undefined, undefined, done);
      } catch (error) {
        if (!done.aborted) abort(error);
        return;
      }
      leftMs = extend * 1_000;
    }
  }

  /** Reports until the server has taken or refused it: repeating a report changes nothing. */
  #report(job: Job, what: 'ack' | 'refuse' | 'extend', query: Record<string, string>, body?: BodyInit, type = 'text/plain', signal = never()): Promise<Response> {
    const url = new URL(`${this.#pool}/job/${job.job}/${what}?${queryOf({ attempt: String(job.attempt), ...query })}`);
    const headers = { 'Job-Token': job.token, 'Content-Type': type };
    return this.#origin.persist(url, { method: 'POST', headers, body }, { signal, expected: what === 'extend' ? EXTENDED : REPORTED });
  }
}

async function jobOf(response: Response): Promise<Job & { abort: (reason: unknown) => void }> {
  const { headers } = response;
  const controller = new AbortController();
  const job = {
    job: Number(headers.get('Job-Id')),
    attempt: Number(headers.get('Job-Attempt')),
    token: headers.get('Job-Token') ?? '',
    key: headers.get('Job-Key') ?? undefined,
    type: headers.get('Content-Type') ?? '',
    data: undefined as Content,
    signal: controller.signal,
    abort: (reason: unknown) => controller.abort(reason),
  };
  if (!job.job) throw new EnckeError(response.status, NOT_ENCKE, 'the response to a poll has no Job-Id');
  job.data = decodeContent(job.type, new Uint8Array(await response.arrayBuffer()));
  return job;
}

/** The time that an attempt has, by the clock of the server, which has whole seconds. 0 where a page cannot read it: the first extension is then early. */
function leftMs(deadlineMs: number, response: Response): number {
  const date = Date.parse(response.headers.get('Date') ?? '');
  return Number.isNaN(date) ? 0 : deadlineMs - date - 999;
}
