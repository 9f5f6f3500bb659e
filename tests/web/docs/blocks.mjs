// What a reader of the documentation pastes: the fenced blocks of a Markdown file, and the shell commands in them.

import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';

/** The fenced blocks of a file, in order: language, first line (counted from 1) and text. */
export function blocks(file) {
  const found = [];
  let open;
  for (const [index, line] of readFileSync(file, 'utf8').split('\n').entries()) {
    const fence = /^(\s*)```(\S*)$/.exec(line);
    if (open && fence) {
      found.push({ ...open, text: open.lines.join('\n') });
      open = undefined;
    } else if (open) {
      open.lines.push(line.replace(open.indent, ''));
    } else if (fence) {
      open = { indent: fence[1], language: fence[2], line: index + 2, lines: [] };
    }
  }
  if (open) throw new Error(`${file}:${open.line}: the block has no end`);
  return found;
}

/** The commands of a shell block, each with all its lines; comments and empty lines are left out. */
export function commands(block) {
  const found = [];
  let lines = [];
  for (const [index, line] of block.text.split('\n').entries()) {
    if (lines.length === 0 && /^\s*(#|$)/.test(line)) continue;
    lines.push(line);
    const text = lines.join('\n');
    // A command is complete when a shell takes it.
    if (spawnSync('bash', ['-n', '-c', text]).status === 0 && !line.endsWith('\\')) {
      found.push({ text, line: block.line + index - lines.length + 1 });
      lines = [];
    }
  }
  if (lines.length > 0) throw new Error(`line ${block.line}: no shell takes ${lines.join('\n')}`);
  return found;
}
