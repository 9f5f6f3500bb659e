// Child processes end with the test that started them, however it ends.

const running = new Set();

process.once('exit', () => {
  for (const child of running) child.kill('SIGKILL');
});

/** Sees to it that `child` doesn't outlive this process. */
export function endWithUs(child) {
  running.add(child);
  child.once('exit', () => running.delete(child));
}
