/**
 * One connection for all tabs of an origin: `subscribe` follows a stream in this tab, over a WebSocket that a SharedWorker has, or one of the
 * tabs where there is no such worker. Each tab gets each record once and in order, whichever tab is closed.
 */
import { subscribe as subscribeAlone } from './subscription.js';
import { Tab, type SharedSubscribeOptions, type SharedSubscription } from './tab.js';

export { EnckeError } from './error.js';
export type { SharedSubscribeOptions, SharedSubscription } from './tab.js';
export type { Token } from './origin.js';
export type * from './types.js';

const tabs = new Map<string, Tab>();

/**
 * Follows a stream. Without Web Locks, as on pages of plain http from another machine, each tab has a connection of its own; so has each process outside
 * of browsers, of which some have Web Locks, too. A page of an opaque origin, such as a sandboxed frame, may use no lock.
 */
export function subscribe<Message = any>(options: SharedSubscribeOptions<Message>): SharedSubscription<Message> {
  if (!globalThis.location || globalThis.origin === 'null' || !globalThis.navigator?.locks || !globalThis.BroadcastChannel || !globalThis.WebSocket) return subscribeAlone(options);
  const base = new URL('/', options.base ?? location.href).href;
  const group = `${options.group ?? ''} ${base}`;
  let tab = tabs.get(group);
  if (!tab) tabs.set(group, (tab = new Tab(group, base, options)));
  return tab.subscribe(options);
}
