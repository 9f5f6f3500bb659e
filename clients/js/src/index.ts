/**
 * The client of Encke: `subscribe` follows streams by server-sent events, `Client` creates, writes and ends them, and `Channel` does both over
 * one WebSocket. `@encke/client/shared` shares one connection between the tabs of a browser; `@encke/client/jobs` has pools.
 */
export { subscribe, Subscription, type SubscribeOptions } from './subscription.js';
export { Client, type ClientOptions, type CreateOptions, type Created, type PublishOptions, type Published } from './client.js';
export { Channel, type AppendOptions, type ChannelOptions, type Socket } from './channel.js';
export type { Appended } from './channel-appends.js';
export type { ChannelSubscribeOptions, ChannelSubscription } from './channel-subscription.js';
export { EnckeError } from './error.js';
export type { OriginOptions, Token } from './origin.js';
export type * from './types.js';
