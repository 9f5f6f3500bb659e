// The package, its README, and its types.

import { execFileSync } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { testPackage } from './packaging.mjs';

const ROOT = join(import.meta.dirname, '..');

testPackage(ROOT, ['Hello, world | , world\n', 'Hello\n, \nworld\nDONE\n']);

test('its types are those of `resumable-stream`', () => {
  execFileSync(join(ROOT, 'node_modules/.bin/tsc'), ['-p', 'test'], { cwd: ROOT, stdio: ['ignore', 'inherit', 'inherit'] });
});
