// The program of tests/promrules.

import { execFileSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const PROGRAM = process.env.PROMRULES ?? fileURLToPath(new URL('../../target/tools/promrules', import.meta.url));

/** Runs it, and returns what it prints. What it finds wrong is the message of an error. */
export function promrules(command, file, input = '') {
  return execFileSync(PROGRAM, [command].concat(file), { input, encoding: 'utf8' });
}

/** The content of a file of YAML. */
export function yaml(file) {
  return JSON.parse(promrules('json', file));
}
