/** Calls a function of the caller. What it throws is reported as an error that nothing has caught, and does not stop the client. */
export function notify<Values extends unknown[]>(callback: ((...values: Values) => void) | undefined, ...values: Values): void {
  try {
    callback?.(...values);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
