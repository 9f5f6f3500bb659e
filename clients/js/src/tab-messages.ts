import type { ConnectionState, End, From, StreamRecord } from './types.js';

/** A subscription of a tab, and where it is. */
export interface Want {
  type: 'want';
  tab: string;
  id: number;
  stream: string;
  from?: From;
  last?: number;
  /** The offset behind the last record that it has, if it has begun. Any hub continues there. */
  offset?: string;
}

/** A message of a tab to the hub. */
export type TabMessage = Want | { type: 'leave'; tab: string; id: number; stream: string } | { type: 'token'; ask: string; token?: string };

/** One subscription of a tab; a message without is for all subscriptions of its stream. */
export interface Address {
  tab: string;
  id: number;
}

/** A message of the hub to tabs. */
export type HubMessage =
  /** There is a new hub, which knows of no subscription. */
  | { type: 'hello' }
  | { type: 'ask'; ask: string }
  | { type: 'state'; state: ConnectionState }
  /** Records behind this offset follow. */
  | { type: 'begin'; to: Address; offset: string }
  /** With the length of the data in characters, which a hub of an earlier version does not tell. */
  | { type: 'record'; to?: Address; record: StreamRecord; chars?: number }
  | { type: 'stop'; stream: string }
  | { type: 'end'; to?: Address; end: End }
  | { type: 'refused'; to?: Address; stream: string; status: number; code: string; message: string };

/** The names of a group of tabs that share one connection. */
export const namesOf = (group: string) => ({
  broadcast: `encke:${group}`,
  /** Held by the hub. */
  hubLock: `encke-hub:${group}`,
  /** Held by a tab while it lives. */
  tabLock: (tab: string) => `encke-tab:${tab}`,
});

/** Holds a lock until this context ends. */
export const holdLock = (name: string): Promise<void> =>
  new Promise((resolve, reject) => {
    const hold = () => {
      resolve();
      return new Promise(() => {});
    };
    navigator.locks.request(name, hold).catch(reject);
  });
