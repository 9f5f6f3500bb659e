/** The publisher and the subscriber that `createResumableStreamContext` of `resumable-stream/generic` takes, over streams of Encke. */
import { Channels } from './channels.js';
import type { ServerOptions } from './claim/request.js';
import { Keys } from './keys.js';
import { streamName } from './stream-name.js';

export interface PubSubOptions extends ServerOptions {
  /** Channels and keys are streams below this prefix; `pubsub` by default. */
  prefix?: string;
  /** Seconds for which a key is kept after it was last read or written; 86,400 by default. */
  ttl?: number;
  /** A subscription was refused, or a callback has failed. It is printed by default. */
  onError?: (error: unknown) => void;
}

/** `Publisher` of `resumable-stream/generic`. */
export interface Publisher {
  connect(): Promise<void>;
  /** Publishes a message, behind those before it to the channel. Resolves with 0 if the channel has no subscriber. */
  publish(channel: string, message: string): Promise<number>;
  /** Sets a value, which ends after `EX` seconds. */
  set(key: string, value: string, options?: { EX?: number }): Promise<'OK'>;
  get(key: string): Promise<string | null>;
  /** Adds one to a number, and returns the sum. A key without a value has 0. */
  incr(key: string): Promise<number>;
}

/** `Subscriber` of `resumable-stream/generic`. */
export interface Subscriber {
  connect(): Promise<void>;
  /** Calls back with each message that is published when the promise has resolved, or later: once and in order, over cuts and restarts of the server. */
  subscribe(channel: string, callback: (message: string) => void): Promise<void>;
  /** Ends the subscriptions to a channel. */
  unsubscribe(channel: string): Promise<void>;
}

const TTL_S = 24 * 60 * 60;

export function createPubSub({ prefix = 'pubsub', ttl = TTL_S, onError = console.error, ...server }: PubSubOptions): { publisher: Publisher; subscriber: Subscriber } {
  const keys = new Keys(server, (key) => streamName(`${prefix}/keys`, key), ttl);
  const channels = new Channels(server, (channel) => streamName(`${prefix}/channels`, channel), onError);
  const connect = async () => {};
  return {
    publisher: {
      connect,
      async publish(channel, message) {
        // A subscriber finds the values that were set before the message.
        return (await channels.publish(channel, message, keys.settled())) ? 1 : 0;
      },
      async set(key, value, options) {
        await keys.set(key, value, options?.EX);
        return 'OK';
      },
      get: (key) => keys.get(key),
      incr: (key) => keys.incr(key),
    },
    subscriber: {
      connect,
      subscribe: (channel, callback) => channels.subscribe(channel, callback),
      unsubscribe: (channel) => channels.unsubscribe(channel),
    },
  };
}
