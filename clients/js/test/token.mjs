// Tokens of an issuer with a secret, and the configuration of a server that takes them.

import { createHmac } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

const SECRET = 'the secret of the issuer of these tests';
const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
const EVERYTHING = ['create', 'read', 'append', 'stop', 'post', 'work', 'list', 'delete'];

/** A token that is good for some seconds, or was. */
export function token(seconds, sub = 'ann') {
  const now = Math.floor(Date.now() / 1000);
  const grants = Object.fromEntries(EVERYTHING.map((action) => [action, ['/v1/**']]));
  const signed = `${encode({ alg: 'HS256', typ: 'JWT' })}.${encode({ iss: 'tests', aud: 'encke', sub, exp: now + seconds, encke: grants })}`;
  return `${signed}.${createHmac('sha256', SECRET).update(signed).digest('base64url')}`;
}

/** Options of a server with access control. */
export function guarded(folder, args = []) {
  const config = join(folder, 'encke.toml');
  writeFileSync(config, `[access]\nleeway = "0s"\n[[access.issuers]]\nname = "tests"\nissuer = "tests"\naudience = "encke"\nalgorithms = ["HS256"]\nsecret = "${SECRET}"\n`);
  return { args: ['--config', config, '--admin-listen', 'none', ...args] };
}
