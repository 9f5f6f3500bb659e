// Ports for servers that tests stop and start again.

import { once } from 'node:events';
import { createServer } from 'node:net';

/** The Rust tests, which run beside these, use the ports from 20,000 to 27,999. Linux gives those from 32,768 on to connections by default. */
const FIRST = 28_000;
const PORTS = 4_000;

let given = 0;

/**
 * A free port below those that the system gives to connections, so that none takes it while its server is not there:
 * not even one of a client that tries to reach the server again.
 */
export async function fixedPort() {
  // Processes of tests that run at the same time begin at different places.
  for (; given < PORTS; given += 1) {
    const port = FIRST + ((process.pid * 97 + given) % PORTS);
    if (await isFree(port)) {
      given += 1;
      return port;
    }
  }
  throw new Error('no port is free');
}

/** An address with such a port. */
export async function fixedAddress() {
  return `127.0.0.1:${await fixedPort()}`;
}

async function isFree(port) {
  const server = createServer();
  try {
    await once(server.listen(port, '127.0.0.1'), 'listening');
  } catch {
    return false;
  }
  server.close();
  await once(server, 'close');
  return true;
}
