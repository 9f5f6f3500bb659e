// What a process of this machine uses, by its id.

import { readFileSync } from 'node:fs';

/** Seconds of processor time so far: of the process itself, and of the system for it. */
export function cpuTimes(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return { own: Number(fields[11]) / 100, system: Number(fields[12]) / 100 };
}

/** Both together. */
export function cpuSeconds(pid) {
  const { own, system } = cpuTimes(pid);
  return own + system;
}

/** Private and resident memory in MiB. */
export function memoryMib(pid) {
  const text = readFileSync(`/proc/${pid}/status`, 'utf8');
  const mib = (name) => Number(new RegExp(`${name}:\\s+(\\d+)`).exec(text)[1]) / 1024;
  return { anonymous: mib('RssAnon'), resident: mib('VmRSS') };
}

export function wait(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Calls a function for 0 to count - 1, a hundred at a time. */
export async function hundreds(count, of) {
  const all = [];
  for (let first = 0; first < count; first += 100) {
    const some = Array.from({ length: Math.min(100, count - first) }, (_, at) => of(first + at));
    all.push(...(await Promise.all(some)));
  }
  return all;
}
