// Waiting for a condition.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

/** How long a condition may take to come true, on a busy machine. */
const WAIT_MS_MAX = 60_000;

/** Waits until a condition is true. */
export async function waitFor(what, isSo) {
  const deadline = performance.now() + WAIT_MS_MAX;
  while (!(await isSo())) {
    assert.ok(performance.now() < deadline, `still not so: ${what}`);
    await sleep(20);
  }
}
