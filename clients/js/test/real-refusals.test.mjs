// Refusals of the real server that are not of the usual form: its redirect to https, and a body that is too large.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { test } from 'node:test';
import { promisify } from 'node:util';
import { Client } from '@encke/client';
import { selfSigned } from '../../../tests/web/certificate.mjs';
import { fixedAddress } from '../../../tests/web/ports.mjs';
import { Server } from './server.mjs';

const TIMEOUT = { timeout: 120_000 };
const ROOT = join(import.meta.dirname, '..');

/** Reads by the redirect, then writes to it. */
const PROGRAM = `
  import { Client, subscribe } from '@encke/client';
  const [plain, secure] = process.argv.slice(1);
  await new Client({ base: secure }).create('redirected', { data: 1 });
  for await (const { messages } of subscribe({ base: plain, stream: 'redirected', from: '-1' })) {
    console.log(JSON.stringify(messages));
    break;
  }
  await new Client({ base: plain }).publish('redirected', 2).catch(({ status, code, message }) => console.log(status, code, message));
  for await (const { messages } of subscribe({ base: secure, stream: 'redirected', last: 1 })) {
    console.log(JSON.stringify(messages));
    break;
  }
`;

test('--redirect-http leads a subscription to https, and a write to an error', TIMEOUT, async () => {
  const redirect = await fixedAddress();
  const server = await Server.start((folder) => ({ tls: selfSigned(folder), args: ['--redirect-http', redirect] }));
  try {
    const args = ['--input-type=module', '-e', PROGRAM, `http://${redirect}`, server.url];
    const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: ROOT, env: { ...process.env, NODE_EXTRA_CA_CERTS: server.tls.cert } });
    assert.equal(stdout, '[1]\n403 http status 403: this port only redirects GET and HEAD to https; use https\n[1]\n');
  } finally {
    await server.end();
  }
});

test('a body above the limit of the server is refused at once', TIMEOUT, async () => {
  const server = await Server.start({ args: ['--body-max', '64KiB'] });
  try {
    let sent = 0;
    const client = new Client({
      base: server.url,
      fetch: (...args) => {
        sent += 1;
        return fetch(...args);
      },
    });
    await client.create('large');
    const refused = { status: 413, mayBeDone: false };
    await assert.rejects(client.publish('large', 'x'.repeat(5_000_000)), refused);
    await client.publish('large', 'small');
    assert.equal(sent, 3);
    assert.deepEqual(await server.read('large'), ['small']);
  } finally {
    await server.end();
  }
});
