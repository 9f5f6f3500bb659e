import { errorOf } from './channel-subscription.js';
import type { EnckeError } from './error.js';

/** The response to an append over a channel. */
export interface Appended {
  /** The offset behind the data. */
  offset: string;
  /** An earlier attempt, whose response was lost, had appended the data. */
  duplicate?: boolean;
  closed?: boolean;
  /** A reader asks the writer to stop. */
  stopRequested?: boolean;
}

type Message = { type: string; stream: string; producer?: { id: string; epoch: number; seq: number } };

interface Entry {
  message: Message;
  resolve: (appended: Appended) => void;
  reject: (error: EnckeError) => void;
}

const RETRY_MS = 1_000;

/**
 * The appends of a channel that are not acknowledged. Invariant: those of one stream have consecutive numbers of the producer, in the order of
 * the map, so that the server takes none behind one that it has refused.
 */
export class Appends {
  readonly #producerId = crypto.randomUUID();
  /** By stream, the next number. */
  readonly #nextSeq = new Map<string, number>();
  /** By the id of the message that was sent last, in the order of sending. */
  #entries = new Map<number, Entry>();
  readonly #newId: () => number;
  readonly #send: (message: object) => void;

  /** `send` drops a message while the connection is away. */
  constructor(newId: () => number, send: (message: object) => void) {
    this.#newId = newId;
    this.#send = send;
  }

  /** Sends a message that is stored once, however often it is sent. */
  append(message: Message): Promise<Appended> {
    const seq = this.#nextSeq.get(message.stream) ?? 0;
    this.#nextSeq.set(message.stream, seq + 1);
    return this.request({ ...message, producer: { id: this.#producerId, epoch: 0, seq } });
  }

  /** Sends a message that has no effect twice. */
  request(message: Message): Promise<Appended> {
    return new Promise((resolve, reject) => this.#enter({ message, resolve, reject }));
  }

  /** The connection is there again: sends what was not acknowledged. */
  resend(): void {
    for (const [id, { message }] of this.#entries) this.#send({ ...message, id });
  }

  /** Takes a response. Those to messages that were sent again are over. */
  receive(response: any): void {
    const entry = this.#entries.get(response.id);
    if (!entry) return;
    if (response.type === 'error') return this.#refused(response.id, entry, errorOf(response));
    this.#entries.delete(response.id);
    entry.resolve(response);
  }

  /** The channel is over. */
  fail(error: EnckeError): void {
    for (const { reject } of this.#entries.values()) reject(error);
    this.#entries.clear();
  }

  #enter(entry: Entry): void {
    const id = this.#newId();
    this.#entries.set(id, entry);
    this.#send({ ...entry.message, id });
  }

  #refused(id: number, refused: Entry, error: EnckeError): void {
    if (error.isTransient) {
      // Those behind it are refused because of the gap, and follow it again.
      setTimeout(() => this.#repeat(id), (error.retryAfter ?? 0) * 1_000 || RETRY_MS);
      return;
    }
    const writer = this.#writerOf(refused);
    const at = writer.findIndex(([, entry]) => entry === refused);
    if (error.code === 'sequence_gap' && at > 0) return; // The response to the one before says why.
    // Nothing behind it is stored: what a writer has written has no holes.
    for (const [late, entry] of writer.slice(at)) {
      this.#entries.delete(late);
      entry.reject(error);
    }
    const { stream, producer } = refused.message;
    if (producer) this.#nextSeq.set(stream, producer.seq);
  }

  /** Sends an append again, and those of its stream behind it. */
  #repeat(id: number): void {
    const refused = this.#entries.get(id);
    if (!refused) return; // It was sent again already, behind one before it.
    const writer = this.#writerOf(refused);
    for (const [old, entry] of writer.slice(writer.findIndex(([, entry]) => entry === refused))) {
      this.#entries.delete(old);
      this.#enter(entry);
    }
  }

  /** The unacknowledged appends to a stream, in their order; a message without a number stands alone. */
  #writerOf(of: Entry): [number, Entry][] {
    const entries = [...this.#entries];
    if (!of.message.producer) return entries.filter(([, entry]) => entry === of);
    return entries.filter(([, { message }]) => message.producer && message.stream === of.message.stream);
  }
}
