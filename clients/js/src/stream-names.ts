import type { From } from './types.js';

/** A stream or pattern that a subscription names, perhaps with a beginning of its own. */
export type Named = string | { stream: string; from: From };

export const nameOf = (entry: Named): string => (typeof entry === 'string' ? entry : entry.stream);

/** Whether a name stands for all streams below a prefix (docs/events.md, Patterns). */
export const isPattern = (name: string): boolean => /(^|\/)\*\*?$/.test(name);
