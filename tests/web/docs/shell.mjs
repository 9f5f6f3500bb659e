// One shell for all commands of a document, so that variables and directories stay as in a terminal.

import { spawn } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { endWithUs } from '../child.mjs';

/** How long a command may take until it ends, or, if it continues, until it prints something. */
const PATIENCE_MS = 60_000;

export class Shell {
  #child;
  #directory;
  #count = 0;
  #answers = '';
  #groups = new Set();

  /** A shell in `cwd` that keeps the output of commands in `directory`. */
  constructor({ cwd, directory, env }) {
    this.#directory = directory;
    this.#child = spawn('bash', ['--noprofile', '--norc'], { cwd, env, stdio: ['pipe', 'ignore', 'inherit', 'pipe'] });
    endWithUs(this.#child);
    // With job control, all processes of a command that continues are one group.
    this.#child.stdin.write('set -m\n');
    process.once('exit', () => this.end());
    this.#child.stdio[3].setEncoding('utf8').on('data', (text) => (this.#answers += text));
  }

  /** Runs a command to its end: its exit code and all that it printed. */
  async run(command) {
    const file = this.#file();
    const code = await this.#ask(`{ ${command}\n} > ${file} 2>&1 < /dev/null; echo "$?" >&3`);
    return { code: Number(code), output: () => readFileSync(file, 'utf8') };
  }

  /** Starts a command that continues, and waits until it prints something. Throws if it ends instead. */
  async start(command) {
    const file = this.#file();
    const text = command.replace(/\s*&$/, '');
    const group = Number(await this.#ask(`( ${text}\n) > ${file} 2>&1 < /dev/null & echo "$!" >&3`));
    const output = () => readFileSync(file, 'utf8');
    const alive = () => signal(group, 0);
    this.#groups.add(group);
    await until(`output of: ${command}`, () => {
      if (output() !== '') return true;
      if (!alive()) throw new Error(`ended without output: ${command}`);
      return false;
    });
    const stop = async () => {
      signal(group, 'SIGTERM');
      await until(`the end of: ${command}`, () => !alive());
      this.#groups.delete(group);
    };
    return { output, alive, stop };
  }

  /** Ends the shell and all that it started. */
  end() {
    for (const group of this.#groups) signal(group, 'SIGKILL');
    this.#groups.clear();
    this.#child.kill('SIGKILL');
  }

  #file() {
    this.#count += 1;
    const file = join(this.#directory, `output-${this.#count}`);
    writeFileSync(file, '');
    return file;
  }

  /** Sends a line to the shell and returns the line that it writes in response. */
  async #ask(line) {
    this.#answers = '';
    this.#child.stdin.write(`${line}\n`);
    await until(`the shell's response to ${line}`, () => this.#answers.endsWith('\n'));
    return this.#answers.trim();
  }
}

/** Sends a signal to a group of processes; false if it is gone. */
function signal(group, name) {
  try {
    return process.kill(-group, name);
  } catch (error) {
    if (error.code !== 'ESRCH') throw error;
    return false;
  }
}

/** Waits until a condition holds. */
export async function until(what, holds) {
  const deadline = performance.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`still not so after ${PATIENCE_MS} ms: ${what}`);
    await sleep(10);
  }
}
