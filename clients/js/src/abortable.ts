/** The callbacks of a signal, with its one listener: Node warns of more than ten, and any number of calls may share a signal. */
const callbacksOf = new WeakMap<AbortSignal, { all: Set<() => void>; listener: () => void }>();

/** Calls back when the signal is aborted, unless the function that this one returns was called before. Each callback is a function of its own. */
export function onAbort(signal: AbortSignal, callback: () => void): () => void {
  let callbacks = callbacksOf.get(signal);
  if (!callbacks) {
    const all = new Set<() => void>();
    callbacks = { all, listener: () => all.forEach((each) => each()) };
    callbacksOf.set(signal, callbacks);
    signal.addEventListener('abort', callbacks.listener, { once: true });
  }
  const { all, listener } = callbacks;
  all.add(callback);
  return () => {
    if (!all.delete(callback) || all.size) return;
    signal.removeEventListener('abort', listener);
    callbacksOf.delete(signal);
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
