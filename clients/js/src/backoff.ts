import { abortable } from './abortable.js';

const FIRST_MS = 250;
const LAST_MS = 30_000;
const RESEND_MS = 1_000;
/** The longest delay that a server can ask for with `Retry-After` or `retry`: 5 minutes. */
export const SERVER_DELAY_MS_MAX = 300_000;
/** Timers of a longer time fire at once. */
export const TIMER_MS_MAX = 2 ** 31 - 1;

/** Waits between attempts: exponential with jitter, so that clients do not come back together. */
export class Backoff {
  #failures = 0;

  /** The next wait is the shortest one again. */
  reset(): void {
    this.#failures = 0;
  }

  /** Waits, as long as the server asked for if it asked for a time. Rejects with the signal's reason when it is aborted. */
  wait(signal: AbortSignal, serverMs?: number): Promise<void> {
    const full = Math.min(LAST_MS, FIRST_MS * 2 ** this.#failures++);
    return sleep(serverDelayMs(serverMs) ?? full * (0.5 + Math.random() / 2), signal);
  }
}

/**
 * The delay that a server asked for, between its time and one and a half of it, and within `FIRST_MS` and `SERVER_DELAY_MS_MAX`. A time that
 * is not positive or not finite counts as absent.
 */
export function serverDelayMs(ms: number | undefined): number | undefined {
  if (!ms || ms < 0 || !Number.isFinite(ms)) return undefined;
  return Math.min(SERVER_DELAY_MS_MAX, Math.max(FIRST_MS, ms * (1 + Math.random() / 2)));
}

/** The time after which a refused message of a channel is sent again: the seconds that the server asked for, or about a second. */
export const resendMs = (retryAfter?: number): number => serverDelayMs((retryAfter ?? 0) * 1_000) ?? RESEND_MS * (1 + Math.random() / 2);

/** Resolves after `ms`, or rejects with the signal's reason. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  let timer: ReturnType<typeof setTimeout>;
  const elapsed = new Promise<void>((resolve) => (timer = setTimeout(resolve, Math.min(ms, TIMER_MS_MAX))));
  return abortable(elapsed, signal).finally(() => clearTimeout(timer));
}
