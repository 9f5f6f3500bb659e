// The server of the chat: it signs users in, and has a model write answers to streams of Encke, where pages read them.

import { readFileSync } from 'node:fs';
import { BackoffDefaults, createFetchWithBackoff, DurableStream, IdempotentProducer } from '@durable-streams/client';
import { serve } from '@hono/node-server';
import { serveStatic } from '@hono/node-server/serve-static';
import { simulateReadableStream, streamText } from 'ai';
import { MockLanguageModelV3 } from 'ai/test';
import { Hono } from 'hono';
import { setCookie } from 'hono/cookie';
import { jwt, sign } from 'hono/jwt';

const [port = '4444', encke = 'http://127.0.0.1:4437'] = process.argv.slice(2);
const read = (file) => readFileSync(new URL(file, import.meta.url), 'utf8');
const secret = /^secret = "(.+)"$/m.exec(read('encke.toml'))[1];
const token = (sub, scope) => sign({ iss: 'chat', aud: 'encke', sub, scope, exp: Date.now() / 1000 + 3600 }, secret);
const authorization = async () => `Bearer ${await token('chat-server', 'server')}`;
/** Repeats what Encke does not answer, every second at least: an answer is abandoned after five without an append. */
const fetchAgain = createFetchWithBackoff(fetch, { ...BackoffDefaults, maxDelay: 1_000 });
const stream = (name, fields) => new DurableStream({ url: `${encke}/v1/stream/chat/${name}`, fetch: fetchAgain,
  contentType: 'application/json', headers: { authorization, ...fields } });

/** A model without a network: it recites answer.txt at 50 tokens/s, and breaks off in the middle if asked to fail. */
const model = new MockLanguageModelV3({ async doStream({ prompt }) {
  const chunks = read('answer.txt').match(/\s*\S+/g).map((delta) => ({ type: 'text-delta', id: '1', delta }));
  if (/\bfail/.test(JSON.stringify(prompt))) chunks.splice(40, Infinity, { type: 'error', error: Error('asked to') });
  chunks.unshift({ type: 'text-start', id: '1' });
  return { stream: simulateReadableStream({ chunks, chunkDelayInMs: 20 }) };
} });

/** Writes an answer. A user who stops it closes its stream: then Encke refuses the next chunk, and the model ends. */
async function answer(name, prompt) {
  const stop = new AbortController();
  const options = { fetch: fetchAgain, maxInFlight: 1, onError: () => stop.abort() };
  const producer = new IdempotentProducer(stream(name), 'model', options);
  let reason = 'done';
  for await (const chunk of streamText({ model, prompt, abortSignal: stop.signal }).toUIMessageStream()) {
    if (chunk.type === 'error') reason = 'failed';
    producer.append(JSON.stringify(chunk));
  }
  await producer.flush();
  if (!stop.signal.aborted) await stream(name, { 'Encke-End-Reason': reason }).close();
}

const app = new Hono();
app.post('/users/:user{[a-z]{1,20}}', async (c) => {
  const user = c.req.param('user');
  await stream(user, { 'Encke-Owner': user }).create();
  setCookie(c, 'encke', await token(user, 'user'), { httpOnly: true, sameSite: 'Strict' });
  return c.text(stream(user).url);
});
app.post('/answers', jwt({ secret, cookie: 'encke', alg: 'HS256' }), async (c) => {
  const [{ sub }, id, question] = [c.get('jwtPayload'), crypto.randomUUID(), await c.req.text()];
  await stream(`${sub}/${id}`, { 'Encke-Owner': sub, 'Encke-Producer-Timeout': '5' }).create();
  answer(`${sub}/${id}`, question).catch(console.error);
  await stream(sub).append(JSON.stringify({ id, question }));
  return c.body(null, 202);
});
app.use(serveStatic({ root: `${import.meta.dirname}/page` }));
serve({ fetch: app.fetch, hostname: '127.0.0.1', port }, ({ port }) => console.log(`http://127.0.0.1:${port}/`));
