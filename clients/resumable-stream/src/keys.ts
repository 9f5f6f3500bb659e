import { Client, EnckeError } from '@encke/client';
import { request, stateOf, unlessMissing, type ServerOptions } from './claim/request.js';

/** A record of a key's stream. */
interface Entry {
  value: string;
  /** When the value ends, in milliseconds since 1970. */
  untilMs?: number;
}

/** The last entry of a key, and the end of its stream. */
interface LastEntry extends Partial<Entry> {
  nextOffset: string;
}

/**
 * Values by key, as in Redis. The value of a key is the last record of its stream, which keeps no other. Operations on a key take place in the order of the
 * calls.
 */
export class Keys {
  readonly #server: ServerOptions;
  readonly #nameOf: (key: string) => string;
  readonly #ttl: number;
  /** The last operation on each key that has one under way. */
  readonly #last = new Map<string, Promise<unknown>>();

  constructor(server: ServerOptions, nameOf: (key: string) => string, ttl: number) {
    this.#server = server;
    this.#nameOf = nameOf;
    this.#ttl = ttl;
  }

  /** Resolves when the operations that are under way have ended. */
  async settled(): Promise<void> {
    await Promise.all(this.#last.values());
  }

  /** Sets a value, which ends after `seconds`. */
  set(key: string, value: string, seconds?: number): Promise<void> {
    if (seconds !== undefined && seconds > this.#ttl) throw new RangeError(`a value for ${seconds} s needs a \`ttl\` of as many seconds, and it is ${this.#ttl}`);
    return this.#inOrder(key, async (stream) => {
      const entry: Entry = { value, untilMs: seconds && Date.now() + seconds * 1_000 };
      // An entry that is there twice, because a response was lost, is no other value.
      while (!(await unlessMissing(new Client(this.#server).publish(stream, entry)))) {
        if (await this.#create(stream, entry)) return;
      }
    });
  }

  get(key: string): Promise<string | null> {
    return this.#inOrder(key, async (stream) => (await this.#read(stream))?.value ?? null);
  }

  /** Adds one to a number, and returns the sum. A key without a value has 0. */
  incr(key: string): Promise<number> {
    return this.#inOrder(key, async (stream) => {
      const writer = crypto.randomUUID();
      for (;;) {
        const last = await this.#read(stream);
        if (!last) {
          // Only one creates the stream. An attempt whose response was lost may have had success.
          if (await this.#create(stream, { value: '1' }, writer)) return 1;
          if ((await stateOf(this.#server, stream))?.metadata.writer === writer) return 1;
          continue;
        }
        const { value = '0', untilMs, nextOffset } = last;
        if (!/^-?\d{1,15}$/.test(value)) throw new Error('ERR value is not an integer or out of range');
        const sum = Number(value) + 1;
        if (await this.#appendAt(stream, nextOffset, { value: String(sum), untilMs }, writer)) return sum;
      }
    });
  }

  #inOrder<Result>(key: string, operate: (stream: string) => Promise<Result>): Promise<Result> {
    const result = (this.#last.get(key) ?? Promise.resolve()).then(() => operate(this.#nameOf(key)));
    const ended = result
      .catch(() => {})
      .then(() => {
        if (this.#last.get(key) === ended) this.#last.delete(key);
      });
    this.#last.set(key, ended);
    return result;
  }

  async #read(stream: string): Promise<LastEntry | undefined> {
    const response = await unlessMissing(request(this.#server, stream, {}, '?last=1'));
    if (!response) return;
    const [entry]: Entry[] = await response.json();
    const nextOffset = response.headers.get('Stream-Next-Offset') ?? '';
    return entry && !(entry.untilMs! <= Date.now()) ? { ...entry, nextOffset } : { nextOffset };
  }

  async #create(stream: string, data: Entry, writer?: string): Promise<boolean> {
    try {
      const { created } = await new Client(this.#server).create(stream, { data, ttl: this.#ttl, retention: 'records=1', metadata: { writer } });
      return created;
    } catch (error) {
      // It was created with another lifetime.
      if (error instanceof EnckeError && error.code === 'config_differs') return false;
      throw error;
    }
  }

  /** Appends an entry if the stream ends at the offset, and returns whether it did. */
  async #appendAt(stream: string, offset: string, entry: Entry, writer: string): Promise<boolean> {
    const headers = {
      'Content-Type': 'application/json',
      'If-Match': offset,
      // With a producer a repetition is known as one. Each attempt at another offset has an id of its own.
      'Producer-Id': `${writer}@${offset}`,
      'Producer-Epoch': '0',
      'Producer-Seq': '0',
    };
    try {
      await request(this.#server, stream, { method: 'POST', headers, body: JSON.stringify(entry) });
      return true;
    } catch (error) {
      if (error instanceof EnckeError && (error.code === 'tail_differs' || error.status === 404)) return false;
      throw error;
    }
  }
}
