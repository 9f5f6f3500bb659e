// A use of each entry, to be compiled with the settings of the README.

import { Client, EnckeError, subscribe, type StreamRecord, type SubscribeOptions, type Token } from '@encke/client';
import { Pool, RetryLater, type Job } from '@encke/client/jobs';
import { subscribe as subscribeShared } from '@encke/client/shared';
import { Channel, type ChannelOptions } from '@encke/client/websocket';

interface Chat {
  text: string;
}

const token: Token = async () => 'a token';
const options: SubscribeOptions<Chat> = { base: 'http://127.0.0.1:4437', stream: 'chat', from: '-1', token };

export async function use(channelOptions: ChannelOptions): Promise<string[]> {
  const client = new Client({ base: options.base ?? '', fetch: globalThis.fetch });
  const { nextOffset } = await client.publish('chat', { text: 'Hello' }, { signal: AbortSignal.timeout(1_000) });
  const texts: string[] = [nextOffset];
  const add = ({ messages = [] }: StreamRecord<Chat>) => texts.push(...messages.map(({ text }) => text));
  for await (const record of subscribe<Chat>(options)) add(record);
  for await (const record of subscribeShared<Chat>({ stream: 'chat' })) add(record);
  const channel = new Channel(channelOptions);
  const { offset } = await channel.append('chat', { text: offsetOf(new EnckeError(0, 'a', 'b')) });
  for await (const record of channel.subscribe<Chat>({ stream: 'chat', after: offset })) add(record);
  const pool = new Pool('thumbs', { base: 'http://127.0.0.1:4437' });
  const worker = pool.worker('ann', ({ data, signal }: Job) => {
    if (signal.aborted) throw new RetryLater('busy', 60);
    return data;
  });
  await worker.stop();
  return texts;
}

const offsetOf = ({ code }: EnckeError): string => code;
