// What bounds a run of a load tool: a folder that is removed behind it, and a time limit.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import '../child.mjs';

/** A folder that is removed when this process exits, after the servers that it started were killed. */
export function temporaryFolder() {
  const folder = mkdtempSync(join(tmpdir(), 'encke-load-'));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  return folder;
}

/** Ends this process with code 1 after that time, and at SIGINT and SIGTERM. */
export function endAfter(seconds) {
  setTimeout(() => {
    console.log(`WRONG: still running after ${seconds} s`);
    process.exit(1);
  }, seconds * 1_000).unref();
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(1));
}
