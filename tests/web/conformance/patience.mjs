// Tests of time-to-live wait for three quarters of it between two requests, and fail where a busy machine holds up one of the two
// for the rest, half a second: those that fail run again. `run.mjs` says which, and bounds their number.

import { afterEach, beforeAll } from 'vitest';

const OF_LIFETIMES = /TTL/;
const RETRIES = 2;

beforeAll(({}, file) => allowRetries(file.tasks));

afterEach(({ task }) => {
  if (task.result.retryCount > 0) task.meta.retried = true;
});

function allowRetries(tasks) {
  for (const task of tasks) {
    if (task.type === 'suite') allowRetries(task.tasks);
    else if (OF_LIFETIMES.test(task.suite?.name)) task.retry = RETRIES;
  }
}
