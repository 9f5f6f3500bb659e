import { resendMs, sleep } from './backoff.js';
import { errorOf } from './channel-subscription.js';
import { EnckeError } from './error.js';
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
  /** The index of the first entry. Those before it are acknowledged, and are removed together, because to remove the first one of a long array is slow. */
  first: number;
}

interface Entry {
  /** The id of the message that was sent last. Responses to earlier ones are ignored. */
  id: number;
  message: Message;
  writer: Writer;
  seq: number;
  /** Refused: it is sent again, after a time or behind those before it. */
  state: 'waiting' | 'sent' | 'refused';
  /** The connection was lost while the message was under way, or the server failed: it may be stored. */
  mayBeDone: boolean;
  resolve: (appended: Appended) => void;
  reject: (error: unknown) => void;
}

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
  readonly #send: (message: object) => boolean;
  readonly #signal: AbortSignal;

  /** `send` drops a message while the connection is away, and returns false. `signal` is aborted when the channel is over. */
  constructor(newId: () => number, send: (message: object) => boolean, signal: AbortSignal) {
    this.#newId = newId;
    this.#send = send;
    this.#signal = signal;
  }

  /** Sends a message that is stored once, however often it is sent. */
  append(message: Message): Promise<Appended> {
    let writer = this.#writers.get(message.stream);
    if (!writer) this.#writers.set(message.stream, (writer = { epoch: this.#nextEpoch++, nextSeq: 0, entries: [], first: 0 }));
    return this.#enter(message, writer);
  }

  /** Sends a message that has no effect twice. */
  request(message: Message): Promise<Appended> {
    return this.#enter(message, { nextSeq: 0, entries: [], first: 0 });
  }

  /** The connection is lost, and with it the responses to what was sent. */
  lose(): void {
    for (const entry of this.#entries.values()) entry.mayBeDone ||= entry.state === 'sent';
  }

  /** The server has refused a message by its size, and closed the connection: rejects the largest one. Returns false if none was sent. */
  rejectLargest(error: EnckeError): boolean {
    let largest: Entry | undefined;
    let most = 0;
    for (const entry of this.#entries.values()) {
      const { length } = entry.state === 'sent' ? JSON.stringify(entry.message) : '';
      if (length > most) [largest, most] = [entry, length];
    }
    if (largest) this.#rejectFrom(largest, error);
    return !!largest;
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
    for (const entry of this.#entries.values()) entry.reject(errorFor(entry, error));
    this.#entries.clear();
    this.#writers.clear();
  }

  #enter(message: Message, writer: Writer): Promise<Appended> {
    return new Promise((resolve, reject) => {
      const entry: Entry = { id: this.#newId(), message, writer, seq: writer.nextSeq++, state: 'waiting', mayBeDone: false, resolve, reject };
      writer.entries.push(entry);
      this.#entries.set(entry.id, entry);
      this.#transmit(entry);
    });
  }

  #transmit(entry: Entry): void {
    const { id, message, seq, writer: { epoch } } = entry;
    entry.state = this.#send({ ...message, producer: epoch === undefined ? undefined : { id: this.#producerId, epoch, seq }, id }) ? 'sent' : 'waiting';
  }

  #acknowledged(entry: Entry, response: Appended): void {
    const { writer } = entry;
    const { entries } = writer;
    this.#entries.delete(entry.id);
    const at = entries.indexOf(entry, writer.first);
    if (at > writer.first) entries.splice(at, 1);
    else if ((writer.first += 1) * 2 >= entries.length) {
      entries.splice(0, writer.first);
      writer.first = 0;
    }
    const first = entries[writer.first];
    if (!first) this.#end(entry);
    else if (first.state === 'refused') this.#repeat(writer);
    entry.resolve(response);
  }

  #refused(entry: Entry, error: EnckeError): void {
    const { id, writer } = entry;
    entry.state = 'refused';
    // As with requests: only a refusal by the rate tells that the server has not begun.
    entry.mayBeDone ||= error.isTransient && error.status !== 429;
    // The outcome of those before it decides: it is sent again with them, or behind them.
    if (writer.entries[writer.first] !== entry) return;
    if (error.isTransient) {
      const repeat = () => entry.state === 'refused' && entry.id === id && this.#repeat(writer);
      sleep(resendMs(error.retryAfter), this.#signal).then(repeat, () => {});
    } else if (GAPS.includes(error.code) && entry.seq > 0 && !entry.mayBeDone) {
      this.#renumber(writer);
    } else {
      this.#rejectFrom(entry, error);
    }
  }

  /** Rejects an append and those of its writer behind it: a writer leaves no holes. */
  #rejectFrom(entry: Entry, error: EnckeError): void {
    const { entries, first } = entry.writer;
    for (const late of entries.splice(entries.indexOf(entry, first))) {
      this.#entries.delete(late.id);
      late.reject(errorFor(late, error));
    }
    if (entries.length === first) this.#end(entry);
  }

  /** Sends all appends of a writer again. */
  #repeat({ entries, first }: Writer): void {
    for (const entry of entries.slice(first)) {
      this.#entries.delete(entry.id);
      entry.id = this.#newId();
      this.#entries.set(entry.id, entry);
      this.#transmit(entry);
    }
  }

  /** Sends all appends of a writer again, in an epoch that begins with them. */
  #renumber(writer: Writer): void {
    writer.epoch = this.#nextEpoch++;
    writer.nextSeq = 0;
    for (const entry of writer.entries.slice(writer.first)) entry.seq = writer.nextSeq++;
    this.#repeat(writer);
  }

  #end({ message: { stream }, writer }: Entry): void {
    if (this.#writers.get(stream) === writer) this.#writers.delete(stream);
  }
}

/** The error of an append, which tells whether the append may be stored. */
function errorFor({ mayBeDone }: Entry, error: unknown): unknown {
  if (!mayBeDone || !(error instanceof EnckeError)) return error;
  const { status, code, message } = error;
  return Object.assign(new EnckeError(status, code, message, error), { mayBeDone });
}
