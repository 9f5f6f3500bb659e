/** What came and was not iterated over, and how it ends. */
export class Inbox<T> {
  #items: T[] = [];
  #ended = false;
  #error?: unknown;
  #wake = () => {};

  push(item: T): void {
    if (this.#ended) return;
    this.#items.push(item);
    this.#wake();
  }

  /** Nothing follows what is there. */
  end(error?: unknown): void {
    this.#ended = true;
    this.#error = error;
    this.#wake();
  }

  clear(): void {
    this.#items = [];
  }

  /** Everything in its order. `leave` is called when the iteration is over, or left. */
  async *iterate(leave: () => void): AsyncGenerator<T, void> {
    try {
      for (;;) {
        while (this.#items.length) yield this.#items.shift()!;
        if (this.#error) throw this.#error;
        if (this.#ended) return;
        await new Promise<void>((resolve) => (this.#wake = resolve));
      }
    } finally {
      leave();
    }
  }
}
