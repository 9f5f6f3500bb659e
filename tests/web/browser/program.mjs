// The example's own programs, run as a reader of its README would run them.

import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { endWithUs } from '../child.mjs';

export const EXAMPLE = fileURLToPath(new URL('../../../examples/quakes/', import.meta.url));

/** A running program, all it printed, and its exit code to wait for. */
export class Program {
  output = '';

  constructor(script, args, cwd = EXAMPLE) {
    this.child = spawn(process.execPath, [script, ...args], { cwd, stdio: ['ignore', 'pipe', 'pipe'] });
    endWithUs(this.child);
    this.exit = new Promise((resolve) => this.child.once('exit', resolve));
    for (const stream of [this.child.stdout, this.child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => {
        this.output += text;
        this.#waiting?.();
      });
    }
    this.child.once('exit', () => this.#waiting?.());
  }

  #waiting;

  /** The first match of `pattern` in what the program prints. */
  async prints(pattern) {
    for (;;) {
      const match = pattern.exec(this.output);
      if (match) return match;
      if (this.child.exitCode !== null) throw new Error(`${this.child.spawnargs.join(' ')} ended without it:\n${this.output}`);
      await new Promise((resolve) => (this.#waiting = resolve));
    }
  }

  /** Waits for the end and throws unless it is a good one. */
  async succeeds() {
    const code = await this.exit;
    if (code !== 0) throw new Error(`${this.child.spawnargs.join(' ')} ended with ${code}:\n${this.output}`);
    return this.output;
  }

  async stop() {
    this.child.kill('SIGTERM');
    await this.exit;
  }
}
