/**
 * Settles as `promise` does, or rejects with the signal's reason as soon as the signal is aborted. The work behind the promise continues.
 * The listener is removed afterwards, so that a signal that lives long does not collect listeners.
 */
export function abortable<T>(promise: T | PromiseLike<T>, signal?: AbortSignal): Promise<Awaited<T>> {
  if (!signal) return Promise.resolve(promise) as Promise<Awaited<T>>;
  return new Promise<Awaited<T>>((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener('abort', abort, { once: true });
    if (signal.aborted) abort();
    const settled = Promise.resolve(promise) as Promise<Awaited<T>>;
    void settled.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}
