// The hub of a group of tabs in a SharedWorker, which lives as long as one of them.

import { lead } from './hub.js';

const { group, base } = JSON.parse((globalThis as unknown as { name: string }).name);
void lead(group, base);
