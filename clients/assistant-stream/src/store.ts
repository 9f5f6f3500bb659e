import { EnckeError, subscribe } from '@encke/client';
import { ResumableStreamError, type ResumableStreamLease, type ResumableStreamStatus, type ResumableStreamStore } from 'assistant-stream/resumable';
import { ExclusiveWriter } from './claim/exclusive-writer.js';
import { isMissing, remove, stateOf, type ServerOptions, type StreamState } from './claim/request.js';
import { streamName } from './stream-name.js';

export interface EnckeResumableStreamStoreOptions extends ServerOptions {
  /** Streams have names below this prefix; `assistant-stream` by default. */
  prefix?: string;
  /** Milliseconds for which a stream is kept after it was last read or written, if the context names none; a day by default. */
  ttlMs?: number;
  /** Seconds after which readers learn that the process which wrote a stream has ended; 30 by default. */
  producerTimeout?: number;
}

const TTL_MS = 24 * 60 * 60 * 1_000;
const PRODUCER_TIMEOUT_S = 30;
/** The metadata of a stream has 2,048 bytes, of which a character takes up to six. */
const ERROR_CHARS_MAX = 300;

/** Keeps each stream in a stream of Encke, with a record for each chunk. Its lease is the id of its writer, and its cursors are offsets. */
export function createEnckeResumableStreamStore(options: EnckeResumableStreamStoreOptions): ResumableStreamStore {
  return new Store(options);
}

class Store implements ResumableStreamStore {
  readonly #server: ServerOptions;
  readonly #prefix: string;
  readonly #ttlMs: number;
  readonly #producerTimeout: number;
  /** The writers that this store has acquired and not finalized, by the ids of their streams. */
  readonly #writers = new Map<string, ExclusiveWriter>();
  /** The writers of streams that another store has acquired, while calls are under way. */
  readonly #foreign = new Map<string, { writer: Promise<ExclusiveWriter>; calls: number }>();

  constructor({ prefix = 'assistant-stream', ttlMs = TTL_MS, producerTimeout = PRODUCER_TIMEOUT_S, ...server }: EnckeResumableStreamStoreOptions) {
    this.#server = server;
    this.#prefix = prefix;
    this.#ttlMs = ttlMs;
    this.#producerTimeout = producerTimeout;
  }

  acquire: ResumableStreamStore['acquire'] = async (streamId, options) => (await this.acquireLease(streamId, options)).role;

  acquireLease: NonNullable<ResumableStreamStore['acquireLease']> = async (streamId, { ttlMs = this.#ttlMs } = {}) => {
    const claim = await ExclusiveWriter.claim(this.#server, this.#nameOf(streamId), this.#settings(ttlMs));
    if (!(claim instanceof ExclusiveWriter)) return { role: 'consumer' };
    this.#writers.get(streamId)?.release();
    this.#writers.set(streamId, claim);
    return { role: 'producer', lease: { token: claim.id } };
  };

  append: ResumableStreamStore['append'] = async (streamId, chunk, lease) => {
    const bytes = new Uint8Array(chunk); // The caller may fill its buffer again.
    try {
      await this.#withWriter(streamId, lease, async (writer) => bytes.length && (await writer.append(bytes)));
    } catch (error) {
      throw storeError(error, streamId);
    }
  };

  finalize: ResumableStreamStore['finalize'] = async (streamId, status, message = 'Stream errored', lease) => {
    try {
      await this.#withWriter(streamId, lease, (writer) => {
        this.#forget(streamId, writer);
        return status === 'done' ? writer.close('done') : writer.close('failed', { error: shortened(message) });
      });
      return true;
    } catch (error) {
      const refusal = storeError(error, streamId);
      // It has ended, or belongs to another writer.
      if (refusal instanceof ResumableStreamError && refusal.code !== 'invalid-id') return false;
      throw refusal;
    }
  };

  read: ResumableStreamStore['read'] = (streamId, cursor, signal) => this.#read(streamId, this.#nameOf(streamId), cursor || '-1', signal);

  status: ResumableStreamStore['status'] = async (streamId): Promise<ResumableStreamStatus> => {
    const state = await stateOf(this.#server, this.#nameOf(streamId));
    if (!state) return 'missing';
    if (!state.isClosed) return 'streaming';
    return hasFailed(state) ? 'error' : 'done';
  };

  delete: ResumableStreamStore['delete'] = async (streamId) => {
    const writer = this.#writers.get(streamId);
    if (writer) this.#forget(streamId, writer);
    await remove(this.#server, this.#nameOf(streamId));
  };

  async *#read(streamId: string, stream: string, from: string, signal: AbortSignal): ReturnType<typeof this.read> {
    const subscription = subscribe({ ...this.#server, stream, from, signal });
    try {
      for await (const { base64 = '', nextOffset } of subscription) {
        yield { cursor: nextOffset, chunk: Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)) };
      }
    } catch (error) {
      throw storeError(error, streamId);
    }
    const end = subscription.ends.get(stream);
    if (end?.endReason === 'abandoned') throw new Error('The process that wrote the stream has ended');
    if (end?.endReason !== 'failed' || signal.aborted) return;
    const state = await stateOf(this.#server, stream);
    throw new Error(typeof state?.metadata.error === 'string' ? state.metadata.error : 'Stream errored');
  }

  /** Calls `operation` with the writer of a lease, or without a lease with the one that the stream has. Calls at one time have one writer, which keeps their order. */
  async #withWriter(streamId: string, lease: ResumableStreamLease | undefined, operation: (writer: ExclusiveWriter) => Promise<unknown>): Promise<void> {
    const acquired = this.#writers.get(streamId);
    if (acquired && (!lease || acquired.id === lease.token)) return void (await operation(acquired));
    const key = `${streamId} ${lease?.token}`;
    let foreign = this.#foreign.get(key);
    if (!foreign) this.#foreign.set(key, (foreign = { writer: this.#foreignWriter(streamId, lease), calls: 0 }));
    foreign.calls += 1;
    try {
      await operation(await foreign.writer);
    } finally {
      if ((foreign.calls -= 1) === 0) this.#foreign.delete(key);
    }
  }

  async #foreignWriter(streamId: string, lease?: ResumableStreamLease): Promise<ExclusiveWriter> {
    const stream = this.#nameOf(streamId);
    const state = await stateOf(this.#server, stream);
    const { writer } = state?.metadata ?? {};
    if (!state || typeof writer !== 'string') throw new Error(`Stream not found: ${streamId}`);
    if (lease && lease.token !== writer) throw superseded(streamId);
    if (state.isClosed) throw finalized(streamId);
    // The store that has acquired it sends the heartbeats.
    const foreign = new ExclusiveWriter(this.#server, stream, this.#settings(this.#ttlMs), writer, state.nextOffset);
    foreign.release();
    return foreign;
  }

  #forget(streamId: string, writer: ExclusiveWriter): void {
    writer.release();
    if (this.#writers.get(streamId) === writer) this.#writers.delete(streamId);
  }

  #settings(ttlMs: number) {
    return { contentType: 'application/octet-stream', ttl: Math.max(1, Math.ceil(ttlMs / 1_000)), producerTimeout: this.#producerTimeout };
  }

  #nameOf(streamId: string): string {
    return streamName(this.#prefix, streamId);
  }
}

/** The beginning of a message, without halves of characters. */
const shortened = (message: string): string => message.slice(0, ERROR_CHARS_MAX).replace(/\p{Surrogate}/gu, '');

const hasFailed = ({ endReason }: StreamState): boolean => endReason === 'failed' || endReason === 'abandoned';

const superseded = (streamId: string) => new ResumableStreamError('missing', `Stream superseded by a new acquisition: ${streamId}`);
const finalized = (streamId: string) => new ResumableStreamError('finalized', `Stream already finalized: ${streamId}`);

/** The error of a store for a refusal of the server. */
function storeError(error: unknown, streamId: string): unknown {
  if (isMissing(error)) return new Error(`Stream not found: ${streamId}`);
  if (!(error instanceof EnckeError)) return error;
  if (error.code === 'closed') return finalized(streamId);
  return error.code === 'tail_differs' ? superseded(streamId) : error;
}
