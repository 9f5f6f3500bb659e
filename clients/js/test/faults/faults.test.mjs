// Appends to the real server while its process ends and its connections are cut: each is stored once, each call settles, nothing is unhandled.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from '@encke/client';
import { Channel } from '@encke/client/websocket';
import { WebSocket } from 'ws';
import { Faults } from '../../../cases/faults.mjs';

const WRITERS = 4;
/** Appends of a writer that are under way. */
const WINDOW = 5;
const SETTLE_MS_MAX = 120_000;
const POLL_MS = 20;

const clients = {
  'Client.publish': (base) => {
    const client = new Client({ base });
    return { append: (data) => client.publish('load', data, { signal: AbortSignal.timeout(SETTLE_MS_MAX) }), close: () => {} };
  },
  'Channel.append': (base) => {
    const channel = new Channel({ base, WebSocket });
    return { append: (data) => channel.append('load', data), close: () => channel.close() };
  },
};

for (const [name, connect] of Object.entries(clients)) {
  for (const kind of ['ends', 'cuts']) {
    test(`${name}: each append is stored once, and the server has ${kind}`, { timeout: 2 * SETTLE_MS_MAX }, async () => {
      const unhandled = [];
      const note = (error) => unhandled.push(error);
      process.on('unhandledRejection', note).on('uncaughtException', note);
      const faults = await Faults.start(kind);
      const writers = Array.from({ length: WRITERS }, () => connect(faults.url));
      try {
        const acknowledged = Object.fromEntries(writers.map((_, index) => [`writer-${index}`, 0]));
        let isOver = false;
        const write = async (writer, name) => {
          for (let number = 0; !isOver; ) {
            await Promise.all(Array.from({ length: WINDOW }, async () => {
              await writer.append([[name, number++]]);
              acknowledged[name] += 1;
            }));
          }
        };
        const all = Promise.all(writers.map((writer, index) => write(writer, `writer-${index}`)));
        const count = () => Object.values(acknowledged).reduce((sum, one) => sum + one, 0);
        const watch = (async () => {
          while (!(await faults.progress(count()))) await sleep(POLL_MS);
        })();
        await Promise.race([all, watch]); // A writer that fails ends the test.
        isOver = true;
        const settled = await Promise.race([all.then(() => true), sleep(SETTLE_MS_MAX, false, { ref: false })]);
        assert.ok(settled, 'each call settles');
        console.log(`${name}, ${kind}: ${await faults.check(acknowledged)} records`);
      } finally {
        for (const writer of writers) writer.close();
        await faults.stop();
        process.off('unhandledRejection', note).off('uncaughtException', note);
      }
      assert.deepEqual(unhandled, []);
    });
  }
}
