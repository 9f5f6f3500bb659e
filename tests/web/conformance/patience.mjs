// Some tests of the suite fail where a busy machine holds up a request: those of time-to-live wait for three quarters of it between
// two requests, those of server-sent events and live forks give a response up after two or three seconds, and those of subscriptions
// have leases of a second. Of these, those that fail run again. `run.mjs` says which, and bounds their number.

import { afterEach, beforeAll } from 'vitest';

const HAS_DEADLINES = /TTL|SSE|Live Modes|subscription/;
const RETRIES = 2;

beforeAll(({}, file) => allowRetries(file.tasks));

afterEach(({ task }) => {
  if (task.result.retryCount > 0) task.meta.retried = true;
});

function allowRetries(tasks) {
  for (const task of tasks) {
    if (task.type === 'suite') allowRetries(task.tasks);
    else if (HAS_DEADLINES.test(task.suite?.name)) task.retry = RETRIES;
  }
}
