import { Channel } from './channel.js';
import { HubStream } from './hub-stream.js';
import { randomId } from './random-id.js';
import { holdLock, namesOf, type HubMessage, type TabMessage, type Want } from './tab-messages.js';
import type { ConnectionState } from './types.js';

/** Tabs answer within this time, or the next attempt asks again. */
const TOKEN_MS_MAX = 10_000;

/** Becomes the hub of a group of tabs when there is none, and remains it while this context lives. */
export async function lead(group: string, base: string): Promise<void> {
  await holdLock(namesOf(group).hubLock);
  new Hub(group, base);
}

/**
 * The connection of all tabs of a group. Tabs know where their subscriptions are, and tell each new hub. Records are broadcast; each tab takes
 * those behind its position, so what is sent twice does no harm, and the hub sends each tab everything behind its position in order.
 */
class Hub {
  readonly #base: string;
  readonly #names: ReturnType<typeof namesOf>;
  readonly #broadcast: BroadcastChannel;
  readonly #streams = new Map<string, HubStream>();
  readonly #tabs = new Set<string>();
  readonly #asks = new Map<string, (token?: string) => void>();
  #channel?: Channel;
  #state: ConnectionState = 'away';

  constructor(group: string, base: string) {
    this.#base = base;
    this.#names = namesOf(group);
    this.#broadcast = new BroadcastChannel(this.#names.broadcast);
    this.#broadcast.onmessage = ({ data }) => this.#receive(data as TabMessage);
    this.#post({ type: 'hello' });
  }

  #post(message: HubMessage): void {
    this.#broadcast.postMessage(message);
  }

  #receive(message: TabMessage): void {
    if (message.type === 'want') this.#want(message);
    else if (message.type === 'leave') this.#leave(message.stream, (key) => key === keyOf(message));
    else if (message.type === 'token') this.#asks.get(message.ask)?.(message.token);
  }

  #want(want: Want): void {
    const { tab, stream } = want;
    if (!this.#tabs.has(tab)) this.#watch(tab);
    let entry = this.#streams.get(stream);
    if (!entry) {
      const onRefused = () => this.#remove(stream);
      entry = new HubStream(stream, { channel: () => this.#open(), post: (message) => this.#post(message), onRefused });
      this.#streams.set(stream, entry);
    }
    entry.add(keyOf(want), want);
    if (this.#state === 'live') this.#post({ type: 'state', state: 'live' });
  }

  /** The lock of a tab is free when the tab is gone, however it ended. */
  #watch(tab: string): void {
    this.#tabs.add(tab);
    void navigator.locks.request(this.#names.tabLock(tab), () => {
      this.#tabs.delete(tab);
      for (const stream of [...this.#streams.keys()]) this.#leave(stream, (key) => key.startsWith(`${tab}/`));
    });
  }

  #leave(stream: string, isLeaving: (key: string) => boolean): void {
    const entry = this.#streams.get(stream);
    if (entry?.remove(isLeaving)) this.#remove(stream);
  }

  #remove(stream: string): void {
    this.#streams.get(stream)?.close();
    this.#streams.delete(stream);
    if (this.#streams.size) return;
    this.#channel?.close();
    this.#channel = undefined;
  }

  #open(): Channel {
    this.#channel ??= new Channel({
      base: this.#base,
      token: () => this.#ask(),
      onState: (state) => {
        this.#state = state;
        this.#post({ type: 'state', state });
      },
    });
    return this.#channel;
  }

  /** The token of the tab that answers first; `undefined` if that tab has none. */
  #ask(): Promise<string | undefined> {
    const ask = randomId();
    return new Promise<string | undefined>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error('no tab has answered with a token')), TOKEN_MS_MAX);
      this.#asks.set(ask, (token) => {
        clearTimeout(timer);
        resolve(token);
      });
      this.#post({ type: 'ask', ask });
    }).finally(() => this.#asks.delete(ask));
  }
}

const keyOf = ({ tab, id }: { tab: string; id: number }): string => `${tab}/${id}`;
