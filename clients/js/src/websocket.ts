/** `Channel`: subscriptions that come and go, and appends with acknowledgements, over one WebSocket. */
export { Channel, type AppendOptions, type ChannelOptions, type Socket } from './channel.js';
export type { Appended } from './channel-appends.js';
export type { ChannelSubscribeOptions, ChannelSubscription } from './channel-subscription.js';
export { EnckeError } from './error.js';
export type { OriginOptions, Token } from './origin.js';
export type { Named } from './stream-names.js';
export type * from './types.js';
