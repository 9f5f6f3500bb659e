export interface InboxOptions<Item, Entry> {
  /** Takes an item out, and returns the entry for the consumer if the item has one. If it throws, the inbox ends with the error. */
  open: (item: Item) => Entry | undefined;
  /** The consumer waits, and there is no item. */
  onEmpty?: () => void;
  /** The consumer is at the end, or has left. */
  onLeave: () => void;
  /** An item, or the handler of an entry, has failed. */
  onError: (error: unknown) => void;
}

/** An end with an error differs from one without, also if the caller's function has thrown nothing that tells why. */
const reasonOf = (error: unknown): unknown => error || new Error(`a function of the caller has thrown ${error}`);

/** Items that wait for their one consumer, and how they end. */
export class Inbox<Item, Entry = Item> {
  readonly #options: InboxOptions<Item, Entry>;
  readonly #items: Item[] = [];
  /** The index of the first item that waits. Items before it are removed together, because to remove the first one of a long array is slow. */
  #first = 0;
  #isOver = false;
  #error?: unknown;
  #wake = () => {};

  constructor(options: InboxOptions<Item, Entry>) {
    this.#options = options;
  }

  get isEmpty(): boolean {
    return this.#first === this.#items.length;
  }

  push(item: Item): void {
    if (this.#isOver) return;
    this.#items.push(item);
    this.#wake();
  }

  /** Removes the items that wait. The consumer gets the end, or the error. */
  end(error?: unknown): void {
    this.#isOver = true;
    this.#error = error;
    this.#items.length = this.#first = 0;
    this.#wake();
  }

  /** Calls a handler with each entry, and waits for it before the next one. */
  async deliver(handle: (entry: Entry) => unknown): Promise<void> {
    try {
      for await (const entry of this.entries()) {
        if (this.#isOver) return;
        try {
          await handle(entry);
        } catch (error) {
          return this.#options.onError(reasonOf(error));
        }
      }
    } catch {
      // `onError` has it.
    }
  }

  /** The entries in their order. A generator returns between two of them, so end the inbox before `return()`. */
  async *entries(): AsyncGenerator<Entry, void> {
    const { open, onEmpty, onLeave, onError } = this.#options;
    try {
      for (;;) {
        if (this.isEmpty) {
          if (this.#error) throw this.#error;
          if (this.#isOver) return;
          const woken = new Promise<void>((resolve) => (this.#wake = resolve));
          onEmpty?.();
          await woken;
          continue;
        }
        const item = this.#items[this.#first++]!;
        if (this.#first * 2 >= this.#items.length) {
          this.#items.splice(0, this.#first);
          this.#first = 0;
        }
        const entry = open(item);
        if (entry !== undefined) yield entry;
      }
    } catch (error) {
      onError(reasonOf(error));
      throw error;
    } finally {
      onLeave();
    }
  }
}
