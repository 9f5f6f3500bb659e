import { serverDelayMs, sleep } from './backoff.js';
import { errorOf } from './channel-subscription.js';
import type { EnckeError } from './error.js';
import { randomId } from './random-id.js';

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

type Message = { type: string; stream: string };

/**
 * Unacknowledged appends to one stream. They have consecutive numbers of one epoch, so that the server takes none behind one that it has refused.
 * The next writer of the stream has another epoch: no number is used for two appends, and nothing is kept of a stream that is quiet.
 */
interface Writer {
  /** Absent for a message without a number. */
  epoch?: number;
  nextSeq: number;
  /** In the order of the calls. */
  entries: Entry[];
}

interface Entry {
  /** The id of the message that was sent last. Responses to earlier ones are ignored. */
  id: number;
  message: Message;
  writer: Writer;
  seq: number;
  /** The server has refused the message while an earlier one of its writer was under way. */
  isRefused: boolean;
  resolve: (appended: Appended) => void;
  reject: (error: unknown) => void;
}

const RETRY_MS = 1_000;
/** The server does not know the appends before this one: it has lost them, or the stream was created again. */
const GAPS = ['sequence_gap', 'epoch_start'];

/** The appends of a channel that are not acknowledged. */
export class Appends {
  readonly #producerId = randomId();
  #nextEpoch = 0;
  /** By stream. */
  readonly #writers = new Map<string, Writer>();
  readonly #entries = new Map<number, Entry>();
  readonly #newId: () => number;
  readonly #send: (message: object) => void;
  readonly #signal: AbortSignal;

  /** `send` drops a message while the connection is away. `signal` is aborted when the channel is over. */
  constructor(newId: () => number, send: (message: object) => void, signal: AbortSignal) {
    this.#newId = newId;
    this.#send = send;
    this.#signal = signal;
  }

  /** Sends a message that is stored once, however often it is sent. */
  append(message: Message): Promise<Appended> {
    let writer = this.#writers.get(message.stream);
    if (!writer) this.#writers.set(message.stream, (writer = { epoch: this.#nextEpoch++, nextSeq: 0, entries: [] }));
    return this.#enter(message, writer);
  }

  /** Sends a message that has no effect twice. */
  request(message: Message): Promise<Appended> {
    return this.#enter(message, { nextSeq: 0, entries: [] });
  }

  /** The connection is there again: sends every message that was not acknowledged. */
  resend(): void {
    for (const entry of this.#entries.values()) this.#transmit(entry);
  }

  /** Takes a response. */
  receive(response: any): void {
    const entry = this.#entries.get(response.id);
    if (!entry) return;
    if (response.type === 'error') this.#refused(entry, errorOf(response));
    else if (response.type === 'appended') this.#acknowledged(entry, response);
  }

  /** The channel is over. */
  fail(error: unknown): void {
    for (const { reject } of this.#entries.values()) reject(error);
    this.#entries.clear();
    this.#writers.clear();
  }

  #enter(message: Message, writer: Writer): Promise<Appended> {
    return new Promise((resolve, reject) => {
      const entry = { id: this.#newId(), message, writer, seq: writer.nextSeq++, isRefused: false, resolve, reject };
      writer.entries.push(entry);
      this.#entries.set(entry.id, entry);
      this.#transmit(entry);
    });
  }

  #transmit(entry: Entry): void {
    const { id, message, seq, writer: { epoch } } = entry;
    entry.isRefused = false;
    this.#send({ ...message, producer: epoch === undefined ? undefined : { id: this.#producerId, epoch, seq }, id });
  }

  #acknowledged(entry: Entry, response: Appended): void {
    const { writer } = entry;
    this.#entries.delete(entry.id);
    writer.entries.splice(writer.entries.indexOf(entry), 1);
    const [first] = writer.entries;
    if (!first) this.#end(entry);
    else if (first.isRefused) this.#repeat(first);
    entry.resolve(response);
  }

  #refused(entry: Entry, error: EnckeError): void {
    const { id, writer } = entry;
    if (error.isTransient) {
      const repeat = () => this.#entries.has(id) && this.#repeat(entry);
      sleep(serverDelayMs(Number(error.retryAfter) * 1_000) ?? RETRY_MS * (1 + Math.random() / 2), this.#signal).then(repeat, () => {});
    } else if (writer.entries[0] !== entry) {
      // The outcome of those before it decides: it is sent again with them, or behind them.
      entry.isRefused = true;
    } else if (GAPS.includes(error.code) && entry.seq > 0) {
      this.#renumber(writer);
    } else {
      // Nothing behind it is stored: a writer leaves no holes.
      this.#end(entry);
      for (const { id, reject } of writer.entries) {
        this.#entries.delete(id);
        reject(error);
      }
    }
  }

  /** Sends an append again, and those of its writer behind it. */
  #repeat(entry: Entry): void {
    for (const late of entry.writer.entries.slice(entry.writer.entries.indexOf(entry))) {
      this.#entries.delete(late.id);
      late.id = this.#newId();
      this.#entries.set(late.id, late);
      this.#transmit(late);
    }
  }

  /** Sends all appends of a writer again, in an epoch that begins with them. */
  #renumber(writer: Writer): void {
    writer.epoch = this.#nextEpoch++;
    writer.nextSeq = 0;
    for (const entry of writer.entries) entry.seq = writer.nextSeq++;
    this.#repeat(writer.entries[0]!);
  }

  #end({ message: { stream }, writer }: Entry): void {
    if (this.#writers.get(stream) === writer) this.#writers.delete(stream);
  }
}
