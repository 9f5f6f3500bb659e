// The suite's `fetch`, over one HTTP/2 connection: undici, which is Node's, never sends a request that writes beside another one
// on a connection, and the suite leaves event streams open.

import { connect } from 'node:http2';

const WITHOUT_BODY = new Set([204, 205, 304]);

let session;

globalThis.fetch = async (input, options) => {
  const request = new Request(input, options);
  const { signal } = request;
  const body = Buffer.from(await request.arrayBuffer());
  signal.throwIfAborted();
  const stream = send(request, body);
  const abort = () => stream.destroy(signal.reason);
  signal.addEventListener('abort', abort);
  stream.once('close', () => signal.removeEventListener('abort', abort));
  return new Promise((resolve, reject) => {
    // A stream that is reset without an error has no response, either.
    stream.once('error', reject).once('close', () => reject(new TypeError(`stream closed, code ${stream.rstCode}`)));
    stream.once('response', (head) => resolve(response(stream, head)));
  });
};

/** Sends a request over the connection, which is made by the first request and again when it has ended. */
function send(request, body) {
  const { origin, pathname, search } = new URL(request.url);
  if (!session || session.closed || session.destroyed) {
    session = connect(origin);
    session.on('error', () => {}); // Its requests fail, too.
  }
  const headers = { ...Object.fromEntries(request.headers), ':method': request.method, ':path': pathname + search };
  const writes = request.method === 'PUT' || request.method === 'POST' || body.length > 0;
  if (writes) headers['content-length'] = body.length;
  const stream = session.request(headers, { endStream: !writes });
  if (writes) stream.end(body);
  return stream;
}

/** The body is read as it comes: one that the suite leaves alone must not use up the window of the connection. */
function response(stream, head) {
  const status = head[':status'];
  const headers = Object.entries(head).filter(([name]) => !name.startsWith(':'));
  const body = new ReadableStream({
    start(controller) {
      stream.on('data', (chunk) => controller.enqueue(new Uint8Array(chunk)));
      stream.once('end', () => controller.close());
      stream.once('error', (error) => controller.error(error));
      stream.once('close', () => stream.readableEnded || controller.error(new TypeError(`stream closed, code ${stream.rstCode}`)));
    },
    cancel() {
      stream.removeAllListeners('data').removeAllListeners('end').destroy();
    },
  });
  return new Response(WITHOUT_BODY.has(status) ? null : body, { status, headers });
}
