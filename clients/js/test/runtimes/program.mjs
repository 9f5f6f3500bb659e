// A program over all entries of the client, for any runtime: prints what came back, as JSON.

import { Client, subscribe } from '@encke/client';
import { Pool } from '@encke/client/jobs';
import { subscribe as subscribeShared } from '@encke/client/shared';
import { Channel } from '@encke/client/websocket';

export async function run(base, name) {
  const client = new Client({ base });
  await client.create(name);
  await client.publish(name, 'published');
  const first = async (records) => {
    for await (const { messages } of records) return messages;
  };
  const from = '-1';
  const got = { events: await first(subscribe({ base, stream: name, from })) };
  got.shared = await first(subscribeShared({ base, stream: name, from }));
  try {
    const channel = new Channel({ base });
    got.channel = await first(channel.subscribe({ stream: name, from }));
    await channel.append(name, 'appended');
    channel.close();
  } catch (error) {
    got.channel = error.code;
  }
  const pool = new Pool(name, { base });
  await pool.create({ type: 'claim' });
  const worker = pool.worker('ann', ({ data }) => [...data]);
  got.result = await pool.wait(await pool.post(Uint8Array.of(65, 66)));
  await worker.stop();
  return got;
}

// Deno and Bun have `process`, too. A page calls `run` itself.
if (globalThis.process?.argv[2]) console.log(JSON.stringify(await run(process.argv[2], process.argv[3])));
