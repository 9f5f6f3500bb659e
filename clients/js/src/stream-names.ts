import type { From } from './types.js';

/** A stream or pattern that a subscription names, perhaps with a beginning of its own. */
export type Named = string | { stream: string; from: From };

export const nameOf = (entry: Named): string => (typeof entry === 'string' ? entry : entry.stream);

/** Whether a name stands for all streams below a prefix (docs/events.md, Patterns). */
export const isPattern = (name: string): boolean => /(^|\/)\*\*?$/.test(name);

/** Whether the part behind the last `@` of a name reads as a position, which a parameter `stream` of `/v1/events` then takes it for. */
export const endsLikePosition = (name: string): boolean => /@(-1|now|[0-9a-f]{16}_[0-9a-f]{16})$/.test(name);
