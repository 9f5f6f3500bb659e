// An answer of some tokens, as a model gives it: one by one, when the test lets them come. And what a page has of it.

import { waitFor } from '../wait.mjs';

export const TOKENS = ['An', ' answer', ' of', ' some', ' short', ' tokens', '.'];

/** Chunks that come one by one, and then an end. */
export class Answer {
  #chunks;
  #said = 0;
  #wake = () => {};

  constructor(chunks) {
    this.#chunks = chunks;
  }

  /** Lets the next chunks come; behind the last one, the end. */
  say(count = 1) {
    this.#said += count;
    this.#wake();
  }

  /** Lets all come that is left. */
  finish() {
    this.say(this.#chunks.length + 1);
  }

  async *[Symbol.asyncIterator]() {
    for (const [index, chunk] of this.#chunks.entries()) {
      await this.#untilSaid(index);
      yield chunk;
    }
    await this.#untilSaid(this.#chunks.length);
  }

  async #untilSaid(index) {
    while (index >= this.#said) await new Promise((resolve) => (this.#wake = resolve));
  }
}

/** Reads chunks as they come. */
export class Reader {
  /** The chunks that have come. */
  chunks = [];
  #end;

  constructor(chunks) {
    void this.#read(chunks);
  }

  /** Waits until that many chunks have come. */
  async has(count) {
    await waitFor(`${count} chunks`, () => {
      if (this.#end?.error) throw this.#end.error;
      return this.chunks.length >= count;
    });
  }

  /** Waits until the chunks end, and returns all. */
  async all() {
    const error = await this.#ended();
    if (error) throw error;
    return this.chunks;
  }

  /** Waits until reading fails, and returns the error. */
  async failure() {
    const error = await this.#ended();
    if (!error) throw new Error('the chunks ended without an error');
    return error;
  }

  async #ended() {
    await waitFor('the end of the chunks', () => this.#end !== undefined);
    return this.#end.error;
  }

  async #read(chunks) {
    try {
      for await (const chunk of chunks) this.chunks.push(chunk);
      this.#end = {};
    } catch (error) {
      this.#end = { error };
    }
  }
}
