// Has the server killed and started again before each group of tests but the first.

import { beforeEach } from 'vitest';

let group;
/** The start for the present group: tests of a group may run at the same time. */
let started;

beforeEach(async ({ task }) => {
  const before = group;
  group = task.suite?.name;
  if (before !== undefined && before !== group) started = restart();
  await started;
});

async function restart() {
  const response = await fetch(process.env.CONFORMANCE_KILLER, { method: 'POST' });
  if (!response.ok) throw new Error(`the server does not start again: ${await response.text()}`);
}
