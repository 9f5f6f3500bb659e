import { sleep } from './backoff.js';
import { decodeContent, encodeContent } from './content.js';
import { EnckeError, NOT_ENCKE } from './error.js';
import type { Expected } from './expected.js';
import { notify } from './notify.js';
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
  /** Something went wrong with an attempt or with a request that is made again, or the server refuses the worker. */
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
/** How much longer than asked for a response may take, and a part of its body. */
const LATE_MS = 15_000;
const EXTEND_MS_MIN = 200;
/** The time between two polls of which the first had no job, if the server does not wait. */
const POLL_MS_MIN = 1_000;

const JOB_OR_NONE: Expected = { statuses: [200, 204] };
const REPORTED: Expected = { statuses: [204] };
const EXTENDED: Expected = { statuses: [200], type: 'application/json' };

/** Takes jobs of a pool by polling, so that it can stop without losing one that is on its way. */
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
    this.stopped = this.#workAndReport();
    if (options.onError) this.stopped.catch(() => {}); // `onError` has it.
  }

  /** Ends the polls. Resolves when the jobs that run or are on their way are done and acknowledged. */
  stop(): Promise<void> {
    this.#stopping.abort();
    return this.stopped;
  }

  async #workAndReport(): Promise<void> {
    try {
      await this.#work();
    } catch (error) {
      notify(this.#options.onError, error);
      throw error;
    } finally {
      while (this.#running.size) await Promise.race(this.#running);
    }
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
      if (await this.#poll()) continue;
      await sleep(begun + POLL_MS_MIN - performance.now(), signal).catch(() => {}); // It was stopped.
    }
  }

  /** Waits for a job, and runs it. Returns false if there is none. */
  async #poll(): Promise<boolean> {
    const { wait = WAIT_S, onError } = this.#options;
    const poll = new AbortController();
    const answered = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const bound = (ms: number) => {
      clearTimeout(timer);
      timer = setTimeout(() => poll.abort(), ms);
    };
    const { signal } = this.#stopping;
    const release = () => this.#enter(this.#release(poll, answered.signal));
    signal.addEventListener('abort', release);
    bound(wait * 1_000 + LATE_MS);
    try {
      const attempts = { signal: poll.signal, expected: JOB_OR_NONE, onState: (state: ConnectionState, error: unknown) => state === 'away' && notify(onError, error) };
      const response = await this.#origin.persist(this.#workUrl(wait), { method: 'POST' }, attempts);
      answered.abort();
      return await this.#take(response, () => bound(LATE_MS));
    } catch (error) {
      const isReleased = signal.aborted && error instanceof EnckeError && error.code === 'worker_replaced';
      if (!isReleased && !poll.signal.aborted) throw error;
      return false;
    } finally {
      answered.abort();
      clearTimeout(timer);
      signal.removeEventListener('abort', release);
    }
  }

  /**
   * Ends a poll by another one under the same name, which replaces it: its response, which may have a job, is not cut. The other one is repeated
   * because it may have come before the first.
   */
  async #release(poll: AbortController, answered: AbortSignal): Promise<void> {
    while (!answered.aborted) {
      try {
        const init = { method: 'POST', signal: AbortSignal.timeout(LATE_MS) };
        await this.#take(await this.#origin.request(this.#workUrl(0), init, JOB_OR_NONE));
      } catch {
        if (!answered.aborted) poll.abort();
        return;
      }
      await sleep(POLL_MS_MIN, answered).catch(() => {}); // It was answered.
    }
  }

  #workUrl(wait: number): URL {
    const url = new URL(`${this.#pool}/work`);
    url.searchParams.set('worker', this.#name);
    url.searchParams.set('wait', String(wait));
    return url;
  }

  /** Runs the job of a response. Returns false if there is none. */
  async #take(response: Response, onProgress?: () => void): Promise<boolean> {
    if (response.status !== 200) return false;
    try {
      const job = await jobOf(response, onProgress);
      this.#enter(this.#run(job, leftMs(Number(response.headers.get('Job-Deadline')), response)));
      return true;
    } catch (error) {
      notify(this.#options.onError, error); // The response was cut: the server gives the job to another worker, or to this one again.
      return false;
    }
  }

  #enter(operation: Promise<void>): void {
    const entry = operation.finally(() => this.#running.delete(entry));
    this.#running.add(entry);
  }

  async #run({ abort, ...job }: Job & { abort: (reason: unknown) => void }, leftMs: number): Promise<void> {
    const done = new AbortController();
    void this.#extend(job, leftMs, done.signal, abort);
    const refuse = (error: unknown) => {
      const after: Record<string, string> = error instanceof RetryLater ? { after: String(error.seconds) } : {};
      return this.#report(job, 'refuse', after, error instanceof Error ? error.message : String(error));
    };
    try {
      let result;
      try {
        result = await encodeContent(await this.#handler(job), this.#options.contentType);
      } catch (error) {
        return void (await refuse(error));
      }
      try {
        await this.#report(job, 'ack', {}, result.body, result.type);
      } catch (error) {
        // The next attempt would have the same result. The poster learns why there is none.
        if (error instanceof EnckeError && (error.status === 413 || error.code === 'upload_failed')) await refuse(error);
        throw error;
      }
    } catch (error) {
      notify(this.#options.onError, error, job); // Such as `attempt_over`: another worker has the job.
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

async function jobOf(response: Response, onProgress?: () => void): Promise<Job & { abort: (reason: unknown) => void }> {
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
  job.data = decodeContent(job.type, await bytesOf(response, onProgress));
  return job;
}

async function bytesOf({ body }: Response, onProgress = () => {}): Promise<Uint8Array<ArrayBuffer>> {
  const reader = body?.getReader();
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for (;;) {
    onProgress();
    const part = await reader?.read();
    if (!part?.value) return new Uint8Array(await new Blob(parts).arrayBuffer());
    parts.push(part.value);
  }
}

/** The time that an attempt has, by the clock of the server, which has whole seconds. 0 where a page cannot read it: the first extension is then early. */
function leftMs(deadlineMs: number, response: Response): number {
  const date = Date.parse(response.headers.get('Date') ?? '');
  return Number.isNaN(date) ? 0 : deadlineMs - date - 999;
}
