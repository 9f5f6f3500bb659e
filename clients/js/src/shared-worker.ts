// The hub of a group of tabs in a SharedWorker, which lives as long as one of them.

import { lead } from './hub.js';

const { group, base } = JSON.parse((globalThis as unknown as { name: string }).name);
const leads = lead(group, base);
// Each tab learns that the worker leads, and waits from then on for its end.
(globalThis as unknown as { onconnect: (event: MessageEvent) => void }).onconnect = ({ ports: [port] }) => void leads.then(() => port!.postMessage('leads'));
