// The package and its types.

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { testPackage } from '../../resumable-stream/test/packaging.mjs';

const ROOT = join(import.meta.dirname, '..');

testPackage(ROOT, []);

test('it takes clients of pusher-js', () => {
  execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', 'test'], { cwd: ROOT, stdio: ['ignore', 'inherit', 'inherit'] });
});
