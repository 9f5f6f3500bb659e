const FIRST_MS = 250;
const LAST_MS = 30_000;

/** Waits between attempts: exponential, each between a half and all of its time, so that clients do not come back together. */
export class Backoff {
  #failures = 0;

  /** The next wait is the shortest one again. */
  reset(): void {
    this.#failures = 0;
  }

  /** Waits, for `ms` if the server has said so. Rejects with the signal's reason when it is aborted. */
  wait(signal: AbortSignal, ms?: number): Promise<void> {
    const full = Math.min(LAST_MS, FIRST_MS * 2 ** this.#failures++);
    return sleep(ms ?? full * (0.5 + Math.random() / 2), signal);
  }
}

/** Resolves after `ms`, or rejects with the signal's reason. */
export function sleep(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener('abort', abort);
      resolve();
    }, ms);
    signal.addEventListener('abort', abort, { once: true });
  });
}
