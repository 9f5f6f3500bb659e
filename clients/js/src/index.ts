/**
 * The client of Encke: `subscribe` follows streams by server-sent events; `Client` creates, writes, ends and follows them.
 * `@encke/client/websocket` does this over one WebSocket, `@encke/client/shared` shares that between the tabs of a browser, and
 * `@encke/client/jobs` has pools.
 */
export { subscribe, Subscription, type SubscribeOptions } from './subscription.js';
export { Client, type ClientOptions, type CreateOptions, type Created, type PublishOptions, type Published } from './client.js';
export { EnckeError } from './error.js';
export { Origin, type OriginOptions, type Token } from './origin.js';
export type { Named } from './stream-names.js';
export type * from './types.js';
