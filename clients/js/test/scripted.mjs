// A server whose responses a test writes, as a portal, a proxy or a cut network would answer.

import { once } from 'node:events';
import { createServer } from 'node:http';

/** The response of Encke to an append. */
export const APPENDED = { status: 200, headers: { 'Stream-Next-Offset': '1', 'Producer-Epoch': '0', 'Producer-Seq': '0' } };
export const CREATED = { status: 201, headers: { 'Encke-Ack': 'synced', 'Stream-Next-Offset': '0', 'Content-Type': 'application/json' } };
export const HTML = { status: 200, headers: { 'Content-Type': 'text/html' }, body: '<html>Welcome to the portal</html>' };
/** No response, as long as the connection is open. */
export const NEVER = new Promise(() => {});
export const CUT = { cuts: true };

/** `answer(request, number)` returns a response or a promise of one; `request` has its body as text. */
export async function scripted(answer) {
  const requests = [];
  const server = createServer(async (request, response) => {
    request.text = Buffer.concat(await request.toArray()).toString();
    requests.push(request);
    const { status = 200, headers = {}, body = '', cuts, stays } = await answer(request, requests.length);
    if (cuts) return request.socket.destroy();
    response.writeHead(status, headers);
    if (!stays) return response.end(body);
    response.flushHeaders();
    if (body) response.write(body);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    requests,
    url: `http://127.0.0.1:${server.address().port}`,
    end() {
      server.closeAllConnections();
      server.close();
    },
  };
}

/** The messages of errors that the client reports from a microtask, because a function of the caller threw them. They do not end the process. */
export function reportedErrors(t) {
  const errors = [];
  const { queueMicrotask } = globalThis;
  t.mock.method(globalThis, 'queueMicrotask', (callback) => queueMicrotask(() => {
    try {
      callback();
    } catch (error) {
      errors.push(error.message);
    }
  }));
  return errors;
}

/** Runs a test with a scripted server. */
export async function withScripted(answer, test) {
  const server = await scripted(answer);
  try {
    return await test(server);
  } finally {
    server.end();
  }
}
