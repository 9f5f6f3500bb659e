// What vitest runs: the published suite, against the server that run.mjs has started.

import { runConformanceTests } from '@durable-streams/server-conformance-tests';
import { inject } from 'vitest';

runConformanceTests(inject('suite'));
