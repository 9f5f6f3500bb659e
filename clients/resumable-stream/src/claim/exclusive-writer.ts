import { Client, EnckeError, type EndReason } from '@encke/client';
import { request, stateOf, type ServerOptions, type StreamState } from './request.js';

export interface ClaimSettings {
  contentType: string;
  /** Seconds after the last read or write at which the stream ends. */
  ttl: number;
  /** Seconds without an append or a heartbeat after which the server closes the stream as `abandoned`. */
  producerTimeout: number;
}

/** A quiet writer sends at least two heartbeats in the time of `producerTimeout`. */
const INTERVALS_PER_TIMEOUT = 3;

/**
 * The only writer of a stream, which it has created. Each of its requests names the end of the stream (`If-Match`), so that none has an effect on a later
 * stream of the name; and each append has a number, so that it is stored once however often it is sent. No number is used for two appends: one that
 * is refused may have been stored by an earlier attempt, so the next append begins another epoch. Its id is in the metadata of the stream.
 */
export class ExclusiveWriter {
  readonly id: string;
  /** Called when the response to a heartbeat says that the writer should stop: it is a refusal, or a reader asks for it. */
  onStop: (refusal?: EnckeError) => void = () => {};

  readonly #server: ServerOptions;
  readonly #stream: string;
  readonly #contentType: string;
  readonly #producerId = crypto.randomUUID();
  readonly #timer: ReturnType<typeof setInterval>;
  #nextOffset: string;
  #epoch = 0;
  #seq = 0;
  #isQuiet = false;
  /** Requests that have no response yet. */
  #pending = 0;
  #last: Promise<unknown> = Promise.resolve();

  /** Creates a stream, and returns its writer. If the stream exists, the result is its state. */
  static async claim(server: ServerOptions, stream: string, settings: ClaimSettings): Promise<ExclusiveWriter | StreamState> {
    const id = crypto.randomUUID();
    for (;;) {
      const nextOffset = await create(server, stream, settings, id);
      if (nextOffset !== undefined) return new ExclusiveWriter(server, stream, settings, id, nextOffset);
      const state = await stateOf(server, stream);
      // An attempt to create it, whose response was lost, may have had success.
      if (state?.metadata.writer === id) return new ExclusiveWriter(server, stream, settings, id, state.nextOffset);
      // Otherwise it was deleted meanwhile.
      if (state) return state;
    }
  }

  /** Use `claim`. Here `id` and `nextOffset` are those of a stream that was claimed, perhaps by another process. */
  constructor(server: ServerOptions, stream: string, { contentType, producerTimeout }: ClaimSettings, id: string, nextOffset: string) {
    this.id = id;
    this.#server = server;
    this.#stream = stream;
    this.#contentType = contentType;
    this.#nextOffset = nextOffset;
    this.#timer = setInterval(() => void this.#heartbeat(), (producerTimeout * 1_000) / INTERVALS_PER_TIMEOUT);
    // In Node it does not keep the process alive.
    (this.#timer as { unref?: () => void }).unref?.();
  }

  /** Appends data. Appends are stored in the order of the calls. Resolves with whether a reader asks the writer to stop. */
  append(body: BodyInit): Promise<boolean> {
    return this.#inOrder(() => this.#write({ 'Content-Type': this.#contentType }, body));
  }

  /** Closes the stream behind what was appended. `further` is added to the metadata of the stream. */
  close(reason: EndReason, further: Record<string, unknown> = {}): Promise<void> {
    clearInterval(this.#timer);
    const fields = { 'Stream-Closed': 'true', 'Encke-End-Reason': reason, 'Encke-Metadata': this.#metadata(further) };
    return this.#inOrder(async () => void (await this.#write(fields)));
  }

  /** Sends no more heartbeats. The server closes a stream that is open as `abandoned`. */
  release(): void {
    clearInterval(this.#timer);
  }

  #inOrder<Result>(send: () => Promise<Result>): Promise<Result> {
    this.#pending += 1;
    const result = this.#last.then(send).finally(() => (this.#pending -= 1));
    this.#last = result.catch(() => {});
    return result;
  }

  async #write(fields: Record<string, string>, body?: BodyInit): Promise<boolean> {
    this.#isQuiet = false;
    const producer = { 'Producer-Id': this.#producerId, 'Producer-Epoch': String(this.#epoch), 'Producer-Seq': String(this.#seq) };
    try {
      const response = await this.#post({ ...producer, ...fields }, body);
      this.#seq += 1;
      this.#nextOffset = response.headers.get('Stream-Next-Offset') ?? this.#nextOffset;
      return isStopRequested(response);
    } catch (error) {
      this.#epoch += 1;
      this.#seq = 0;
      throw error;
    }
  }

  /** Tells the server that the writer is there, unless something was written in the last interval. */
  async #heartbeat(): Promise<void> {
    const isQuiet = this.#isQuiet;
    this.#isQuiet = true;
    if (!isQuiet || this.#pending) return;
    try {
      const response = await this.#inOrder(() => this.#post({ 'Encke-Metadata': this.#metadata({}) }));
      if (isStopRequested(response)) this.onStop();
    } catch (error) {
      this.release();
      this.onStop(error as EnckeError);
    }
  }

  async #post(fields: Record<string, string>, body?: BodyInit): Promise<Response> {
    for (;;) {
      try {
        return await request(this.#server, this.#stream, { method: 'POST', headers: { 'If-Match': this.#nextOffset, ...fields }, body });
      } catch (error) {
        if (!(error instanceof EnckeError) || error.code !== 'tail_differs') throw error;
        // Another process may have appended for this writer.
        const state = await stateOf(this.#server, this.#stream);
        if (state?.metadata.writer !== this.id) throw error;
        this.#nextOffset = state.nextOffset;
      }
    }
  }

  #metadata(further: Record<string, unknown>): string {
    return asciiJson({ writer: this.id, ...further });
  }
}

/** Creates a stream, and returns where it begins; `undefined` if the stream exists. */
async function create(server: ServerOptions, stream: string, settings: ClaimSettings, writer: string): Promise<string | undefined> {
  try {
    const { created, nextOffset } = await new Client(server).create(stream, { ...settings, metadata: { writer } });
    return created ? nextOffset : undefined;
  } catch (error) {
    // It is closed, or has other settings.
    if (error instanceof EnckeError && error.code === 'config_differs') return;
    throw error;
  }
}

const isStopRequested = ({ headers }: Response): boolean => headers.get('Encke-Stop-Requested') === 'true';

/** JSON for a field of a request, which holds no other characters. */
const asciiJson = (value: unknown): string =>
  JSON.stringify(value).replace(/[^ -~]/g, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
