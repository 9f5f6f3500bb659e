// The server of a test of adapters, with access control or without. It can be started again at the address that its clients know.

import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { SignJWT } from 'jose';
import { Encke } from '../encke.mjs';
import { fixedAddress } from '../ports.mjs';
import { endRequestsTo } from './requests.mjs';

const ISSUER = 'https://app.example';
const AUDIENCE = 'encke';
const KID = 'app';

/** An origin whose pages may read from the server. */
export const PAGE_ORIGIN = 'https://pages.example';

export class Server {
  #folder = mkdtempSync(join(tmpdir(), 'encke-adapters-'));
  #secret = randomBytes(32);
  #options;
  #encke;
  #ended = false;

  /** Starts a server that is stopped when the test `t` ends. With `access` nothing is allowed without credentials. */
  static async start(t, { access = false } = {}) {
    const server = new Server();
    t.after(() => server.#end());
    const args = ['--cors-origins', PAGE_ORIGIN, ...(access ? server.#accessArgs() : [])];
    server.#options = { data: join(server.#folder, 'data'), listen: await fixedAddress(), args };
    server.#encke = await Encke.start(server.#options);
    return server;
  }

  /** The server's address, without a slash at the end. It is the same after a restart. */
  get url() {
    return `http://${this.#options.listen}`;
  }

  /** The URL of a stream. */
  stream(name) {
    return `${this.url}/v1/stream/${name}`;
  }

  /** Stops the server in order, by SIGTERM. */
  stop() {
    return this.#encke.stop();
  }

  /** Ends the server as a crash does, by SIGKILL. */
  kill() {
    return this.#encke.kill();
  }

  /** Starts the server again, with the same data and at the same address. */
  async startAgain() {
    this.#encke = await Encke.start(this.#options);
    // The test may have failed meanwhile.
    if (this.#ended) await this.#encke.kill();
  }

  /** The headers of a caller with a token that grants actions on paths: `{ read: ['/v1/stream/a'] }`. */
  async bearer(sub, grants) {
    const token = await new SignJWT({ encke: grants })
      .setProtectedHeader({ alg: 'HS256', kid: KID })
      .setIssuer(ISSUER)
      .setAudience(AUDIENCE)
      .setSubject(sub)
      .setIssuedAt()
      .setExpirationTime('1h')
      .sign(this.#secret);
    return { Authorization: `Bearer ${token}` };
  }

  /** An issuer whose tokens hold their grants, and a key that signs URLs. */
  #accessArgs() {
    const keys = { keys: [{ kty: 'oct', kid: KID, alg: 'HS256', k: this.#secret.toString('base64url') }] };
    const issuer = { issuer: ISSUER, audience: AUDIENCE, algorithms: ['HS256'], keys: JSON.stringify(keys) };
    const signingKey = { kid: 'links', 'secret-file': join(this.#folder, 'links.secret') };
    writeFileSync(signingKey['secret-file'], randomBytes(32).toString('hex'), { mode: 0o600 });
    const config = join(this.#folder, 'encke.toml');
    const tables = [
      '[access]\n',
      `[[access.issuers]]\n${toml(issuer)}`,
      `[[access.signing-keys]]\n${toml(signingKey)}`,
    ];
    writeFileSync(config, tables.join('\n'), { mode: 0o600 });
    return ['--config', config, '--admin-listen', 'none'];
  }

  async #end() {
    this.#ended = true;
    try {
      endRequestsTo(this.url);
      await this.#encke?.stop();
    } finally {
      rmSync(this.#folder, { recursive: true, force: true });
    }
  }
}

const toml = (table) => Object.entries(table).map(([name, value]) => `${name} = ${JSON.stringify(value)}\n`).join('');

/** All of a stream of JSON, with the headers of the response. */
export async function readAll(url, headers = {}) {
  const response = await fetch(`${url}?offset=-1`, { headers });
  return { status: response.status, headers: response.headers, values: response.ok ? await response.json() : undefined };
}
