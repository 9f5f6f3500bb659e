// The tests of the package wait a second for what has happened at once in memory. On a busy machine a server may need longer.

import { vi } from 'vitest';

const WAIT_MS_MAX = 60_000;

const { waitFor } = vi;
vi.waitFor = (callback, options) => waitFor(callback, { ...options, timeout: WAIT_MS_MAX });
