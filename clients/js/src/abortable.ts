/** Functions that wait for the abort of a signal, and the one listener that calls them. Node warns of more than ten listeners. */
interface Waiters {
  callbacks: Set<() => void>;
  listener: () => void;
}

const waitersOf = new WeakMap<AbortSignal, Waiters>();

/**
 * Calls `callback` when the signal is aborted. The function that it returns releases the callback, any number of times. A signal that is
 * aborted already calls nothing. Callers pass a new function each time, because equal ones would be released together.
 */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  let waiters = waitersOf.get(signal);
  if (!waiters) {
    const callbacks = new Set<() => void>();
    waiters = { callbacks, listener: () => callbacks.forEach((each) => each()) };
    waitersOf.set(signal, waiters);
    signal.addEventListener('abort', waiters.listener, { once: true });
  }
  const { callbacks, listener } = waiters;
  callbacks.add(callback);
  return () => {
    callbacks.delete(callback);
    if (callbacks.size || waitersOf.get(signal)?.callbacks !== callbacks) return;
    signal.removeEventListener('abort', listener);
    waitersOf.delete(signal);
  };
}

/**
 * Settles as `promise` does, or rejects with the signal's reason as soon as the signal is aborted. The work behind the promise continues.
 * The callback is removed afterwards, so that a signal that lives long does not collect callbacks.
 */
export function abortable<T>(promise: T | PromiseLike<T>, signal?: AbortSignal): Promise<Awaited<T>> {
  if (!signal) return Promise.resolve(promise) as Promise<Awaited<T>>;
  return new Promise<Awaited<T>>((resolve, reject) => {
    const abort = () => reject(signal.reason);
    const release = onAbort(signal, abort);
    if (signal.aborted) abort();
    const settled = Promise.resolve(promise) as Promise<Awaited<T>>;
    void settled.then(resolve, reject).finally(release);
  });
}
