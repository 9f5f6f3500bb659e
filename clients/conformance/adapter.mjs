// An adapter of clients/js for the client conformance suite: a line of JSON for each command, and one for its result.

import { createInterface } from 'node:readline';
import { Client, EnckeError, subscribe } from '../js/dist/index.js';

/** How long a call may repeat its request. */
const CALL_MS_MAX = 8_000;
const READ_MS = 5_000;

let base;
/** The last response, for fields that the client does not return. */
let last;
const contentTypes = new Map();
const writers = new Map();

/** The reference server has its streams at the root. */
async function fetchAtRoot(url, init) {
  const { pathname, search } = new URL(url);
  last = await fetch(base + decodeURIComponent(pathname).replace('/v1/stream/', '/') + search, init);
  return last;
}

const nameOf = (path) => path.replace(/^\//, '');
const typeOf = (path) => contentTypes.get(path) ?? 'application/octet-stream';
const isJson = (path) => /^application\/json\b/i.test(typeOf(path));
const limit = () => AbortSignal.timeout(CALL_MS_MAX);

const keyOf = (producerId, epoch) => `${producerId} ${epoch}`;

function writer(producerId, epoch) {
  const key = keyOf(producerId, epoch);
  if (!writers.has(key)) writers.set(key, new Client({ base, producerId, epoch, foreignMsMax: 0, fetch: fetchAtRoot }));
  return writers.get(key);
}

function dataOf({ path, data, binary }) {
  if (binary) return Buffer.from(data, 'base64');
  return isJson(path) ? JSON.parse(data) : data;
}

const refuse = (what) => Promise.reject(Object.assign(new Error(`the client has no ${what}`), { errorCode: 'NOT_SUPPORTED' }));

const commands = {
  init({ serverUrl }) {
    base = serverUrl;
    return { clientName: 'encke-js', clientVersion: '0.1.0', features: { sse: true, streaming: true } };
  },
  async create({ path, contentType = 'application/octet-stream', ttlSeconds, expiresAt, headers, closed, data }) {
    if (closed || headers) return refuse('such option of a creation');
    const options = { contentType, ttl: ttlSeconds, expiresAt: expiresAt && new Date(expiresAt), signal: limit() };
    contentTypes.set(path, contentType);
    const content = data === undefined ? {} : { data: dataOf({ path, data }) };
    const { created, nextOffset } = await writer().create(nameOf(path), { ...options, ...content });
    return { status: created ? 201 : 200, offset: nextOffset };
  },
  append: ({ seq, headers, producerId, producerEpoch, ...command }) => (seq !== undefined || headers ? refuse('such option of an append') : append(producerId, producerEpoch, command)),
  'idempotent-append': ({ autoClaim, producerId, epoch, ...command }) => (autoClaim ? refuse('automatic epoch') : append(producerId, epoch, command)),
  async 'idempotent-append-batch'({ path, items, producerId, epoch, autoClaim }) {
    if (autoClaim) return refuse('automatic epoch');
    writers.delete(keyOf(producerId, epoch)); // A batch is of a writer that begins anew.
    await Promise.all(items.map((data) => append(producerId, epoch, { path, data })));
    return { status: 200 };
  },
  'idempotent-close': ({ producerId, epoch, ...command }) => close(writer(producerId, epoch), command),
  close: (command) => close(writer(), command),
  'idempotent-detach': () => ({ status: 200 }),
  read,
  connect: () => refuse('HEAD'),
  head: () => refuse('HEAD'),
  delete: () => refuse('DELETE'),
  validate: () => refuse('validation of such options'),
  shutdown: () => ({}),
};

async function append(producerId, epoch, { path, ...content }) {
  const { nextOffset, duplicate } = await writer(producerId, epoch).publish(nameOf(path), dataOf({ path, ...content }), { contentType: typeOf(path), signal: limit() });
  return { status: duplicate ? 204 : 200, offset: nextOffset, duplicate };
}

async function close(client, { path, data, contentType = typeOf(path) }) {
  const content = data === undefined ? {} : { data: dataOf({ path, data }) };
  await client.close(nameOf(path), undefined, { contentType, signal: limit(), ...content });
  return { status: 200, finalOffset: last.headers.get('Stream-Next-Offset') ?? '' };
}

/** A read by a subscription. The client does not say when it has everything, so the adapter looks into the events. */
async function read({ path, offset = '-1', live, timeoutMs = READ_MS, maxChunks = 100, waitForUpToDate }) {
  if (live === 'long-poll') return refuse('long poll');
  const chunks = [];
  const state = { upToDate: false };
  const isAll = () => (!live || waitForUpToDate) && state.upToDate;
  const watch = async (url, init) => {
    const response = await fetchAtRoot(url, init);
    const upToDate = new TransformStream({
      transform(bytes, controller) {
        controller.enqueue(bytes);
        state.upToDate ||= /"(upToDate|streamClosed)":true/.test(Buffer.from(bytes).toString());
      },
    });
    return Object.defineProperties(new Response(response.body?.pipeThrough(upToDate) ?? null, response), { url: { value: response.url } });
  };
  const subscription = subscribe({ url: `${base}${path}`, from: offset, json: isJson(path), foreignMsMax: 0, fetch: watch, signal: AbortSignal.timeout(timeoutMs) });
  const end = setInterval(() => isAll() && subscription.close(), 50);
  try {
    for await (const { messages, text, base64, nextOffset } of subscription) {
      const data = messages ? JSON.stringify(messages) : (text ?? Buffer.from(base64, 'base64').toString());
      chunks.push({ data, offset: nextOffset });
      if (chunks.length >= maxChunks) break;
    }
  } finally {
    clearInterval(end);
  }
  return { status: 200, chunks, offset: subscription.position ?? offset, upToDate: state.upToDate, streamClosed: subscription.ends.size > 0 };
}

function codeOf(error) {
  if (error.errorCode) return error.errorCode;
  if (['TimeoutError', 'AbortError'].includes(error.name)) return 'TIMEOUT';
  if (error instanceof SyntaxError) return 'PARSE_ERROR';
  if (!(error instanceof EnckeError)) return 'NETWORK_ERROR';
  if (error.status === 409 && last?.headers.get('Stream-Closed') === 'true') return 'STREAM_CLOSED';
  return { 400: 'INVALID_OFFSET', 404: 'NOT_FOUND', 409: 'CONFLICT' }[error.status] ?? 'UNEXPECTED_STATUS';
}

for await (const line of createInterface({ input: process.stdin })) {
  const { type, ...command } = JSON.parse(line);
  let result;
  try {
    result = { type, success: true, ...(await (commands[type] ?? (() => refuse(type)))(command)) };
  } catch (error) {
    result = { type: 'error', success: false, commandType: type, status: error.status || undefined, errorCode: codeOf(error), message: String(error.message) };
  }
  console.log(JSON.stringify(result));
  if (type === 'shutdown') process.exit(0);
}
