// Child processes end with the test that started them, however it ends.

const running = new Set();

process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});
// A process that a signal ends has no exit of its own.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(1));

/** Sees to it that `child` doesn't outlive this process. */
export function endWithUs(child) {
  running.add(child);
  child.once('exit', () => running.delete(child));
}
