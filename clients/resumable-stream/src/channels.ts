import { Client, subscribe } from '@encke/client';
import { isMissing, remove, unlessMissing, urlOf, type ServerOptions } from './claim/request.js';

/** A channel that has no subscriber for so long is deleted. */
const TTL_S = 300;
/** A message for a channel that is not there waits so long for its first subscriber. `resumable-stream` gives up after a second. */
const WAIT_MS_MAX = 900;
const WAIT_MS = 25;
/** Channels to which this process has published last, and will perhaps publish again. */
const WRITERS_MAX = 1_000;

type Callback = (message: string) => unknown;

interface ChannelWriter {
  client: Client;
  /** Whether a message waits for the channel: the first one does. */
  waits: boolean;
  /** Messages under way. */
  pending: number;
  last: Promise<unknown>;
}

/** Publishes to channels, each of which is a stream, and subscribes to them. A channel is there from its first subscription to the end of one. */
export class Channels {
  readonly #server: ServerOptions;
  readonly #nameOf: (channel: string) => string;
  readonly #onError: (error: unknown) => void;
  readonly #writers = new Map<string, ChannelWriter>();
  /** What ends the subscriptions to a channel. */
  readonly #ends = new Map<string, AbortController>();

  constructor(server: ServerOptions, nameOf: (channel: string) => string, onError: (error: unknown) => void) {
    this.#server = server;
    this.#nameOf = nameOf;
    this.#onError = onError;
  }

  /** Publishes a message, behind those before it and when `before` is settled. False if the channel has no subscriber. */
  publish(channel: string, message: string, before: Promise<void>): Promise<boolean> {
    const writer = this.#writerOf(channel);
    writer.pending += 1;
    const published = Promise.all([writer.last, before])
      .then(() => this.#publish(this.#nameOf(channel), writer, message))
      .finally(() => (writer.pending -= 1));
    writer.last = published.catch(() => {});
    return published;
  }

  /** Calls back with each message that is published from now on, once and in order. */
  async subscribe(channel: string, callback: Callback): Promise<void> {
    const end = this.#ends.get(channel) ?? new AbortController();
    this.#ends.set(channel, end);
    const from = await this.#open(channel);
    this.#follow(channel, callback, from, end.signal).catch(this.#onError);
  }

  /** Ends the subscriptions of this process to a channel, and the channel. */
  async unsubscribe(channel: string): Promise<void> {
    this.#ends.get(channel)?.abort();
    this.#ends.delete(channel);
    await remove(this.#server, this.#nameOf(channel));
  }

  /** Creates the stream of a channel if it is not there, and returns its end. */
  async #open(channel: string): Promise<string> {
    // A message need not survive a power failure: its receivers do not.
    const { nextOffset } = await new Client(this.#server).create(this.#nameOf(channel), { ttl: TTL_S, ack: 'written' });
    return nextOffset;
  }

  /** Follows a channel from an offset until it is unsubscribed. */
  async #follow(channel: string, callback: Callback, from: string, signal: AbortSignal): Promise<void> {
    const url = urlOf(this.#server, this.#nameOf(channel));
    for (let offset = from; !signal.aborted; ) {
      try {
        for await (const { messages = [] } of subscribe<string>({ ...this.#server, url, from: offset, signal })) {
          // A callback is not awaited, and does not end the subscription if it fails.
          for (const message of messages) (async () => callback(message))().catch(this.#onError);
        }
        return;
      } catch (error) {
        if (!isMissing(error)) throw error;
        // A subscriber of another process has ended the channel.
        offset = await this.#open(channel);
      }
    }
  }

  async #publish(stream: string, writer: ChannelWriter, message: string): Promise<boolean> {
    const deadline = performance.now() + WAIT_MS_MAX;
    for (;;) {
      const isPublished = (await unlessMissing(writer.client.publish(stream, message))) !== undefined;
      if (isPublished || performance.now() > deadline) writer.waits = false;
      if (!writer.waits) return isPublished;
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
  }

  #writerOf(channel: string): ChannelWriter {
    const writer = this.#writers.get(channel) ?? { client: new Client(this.#server), waits: true, pending: 0, last: Promise.resolve() };
    // The last one of the map is the one used last.
    this.#writers.delete(channel);
    this.#writers.set(channel, writer);
    if (this.#writers.size > WRITERS_MAX) this.#evict();
    return writer;
  }

  #evict(): void {
    for (const [channel, { pending }] of this.#writers) {
      if (!pending) return void this.#writers.delete(channel);
    }
  }
}
