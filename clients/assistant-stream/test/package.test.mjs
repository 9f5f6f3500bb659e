// The package, and its README.

import { join } from 'node:path';
import { testPackage } from '../../resumable-stream/test/packaging.mjs';

testPackage(join(import.meta.dirname, '..'), ['Hello, world\n404\n']);
