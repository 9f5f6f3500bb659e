// Tokens that jose makes, at the real server: every algorithm, what is refused, and issuers whose servers of keys rotate, are slow,
// redirect, disappear or send too much. Unknown keys cause three fetches at once and then one in 10 s, so each case has an issuer of its own.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SignJWT, UnsecuredJWT, exportJWK, exportSPKI, generateKeyPair, generateSecret, importJWK } from 'jose';
import { Encke } from '../encke.mjs';
import { KeyServer, keySet, oversized, redirect, silent, slow, trickling } from './key-server.mjs';

const SECRETS = ['HS256', 'HS384', 'HS512'];
/** With the name of EdDSA in RFC 9864. */
const PUBLIC = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'EdDSA', 'Ed25519'];
const CONFIGURED = PUBLIC.filter((name) => name !== 'Ed25519');
const API_KEY = 'encke_a-key-for-the-tests-of-tokens-0123456789';
const AUDIENCE = 'encke';
const OK = [200, [1]];

/** By algorithm: a key that an issuer has, and one of the same name that no issuer has. */
const keys = {};
const foreign = {};

const isRsa = (alg) => /^[RP]S/.test(alg);

/** A key of an algorithm with the name `kid`: what signs, and what issuers publish. `rsa` is a pair to use, since to make one takes long. */
async function key(alg, kid, rsa) {
  if (SECRETS.includes(alg)) {
    const secret = await generateSecret(alg, { extractable: true });
    return { alg, kid, signs: secret, jwk: { ...(await exportJWK(secret)), kid, alg } };
  }
  const { privateKey, publicKey } = rsa ?? (await generateKeyPair(alg, { extractable: true }));
  const signs = rsa ? await importJWK(await exportJWK(privateKey), alg) : privateKey;
  return { alg, kid, signs, publicKey, jwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' } };
}

before(async () => {
  for (const all of [keys, foreign]) {
    const rsa = await generateKeyPair('RS256', { extractable: true });
    for (const alg of [...SECRETS, ...PUBLIC]) all[alg] = await key(alg, `${alg}-key`, isRsa(alg) ? rsa : undefined);
  }
});

const seconds = (offset) => Math.floor(Date.now() / 1000) + offset;

const claims = (iss, other = {}) => ({ iss, aud: AUDIENCE, sub: 'ann', exp: seconds(3_600), encke: { read: ['/v1/stream/**'] }, ...other });

/** A token by jose. */
const sign = ({ alg, kid, signs }, payload, header = {}) => new SignJWT(payload).setProtectedHeader({ alg, kid, ...header }).sign(signs);

const issuerOf = (name) => `https://${name}.example`;

/** An entry of `[[access.issuers]]`. */
const issuer = (name, algorithms, source) => ({ issuer: issuerOf(name), audience: AUDIENCE, algorithms, ...source });

const toml = (table) => Object.entries(table).map(([name, value]) => `${name} = ${JSON.stringify(value)}\n`).join('');

/** Starts a server with these issuers; it has one stream, with the message 1. */
async function start(t, issuers, settings = {}) {
  const folder = mkdtempSync(join(tmpdir(), 'encke-tokens-'));
  let encke;
  t.after(async () => {
    try {
      await encke?.stop();
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
  const apiKey = { name: 'backend', sha256: createHash('sha256').update(API_KEY).digest('hex') };
  const config = join(folder, 'encke.toml');
  const tables = [
    // A request with a wrong token must be refused although it would be allowed without any.
    `[access]\n${toml(settings)}anonymous.grants = [{ actions = ["read"], paths = ["/v1/stream/**"] }]\n`,
    `[[access.api-keys]]\n${toml(apiKey)}grants = [{ actions = ["create"], paths = ["/v1/stream/**"] }]\n`,
    ...issuers.map((entry) => `[[access.issuers]]\n${toml(entry)}`),
  ];
  writeFileSync(config, tables.join('\n'));
  encke = await Encke.start({ data: join(folder, 'data'), args: ['--config', config, '--admin-listen', 'none'] });
  const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${API_KEY}` };
  const created = await fetch(`${encke.url}/v1/stream/a`, { method: 'PUT', headers, body: '[1]' });
  assert.equal(created.status, 201);
  return encke;
}

async function startKeys(t) {
  const server = await KeyServer.start();
  t.after(() => server.close());
  return server;
}

/** Reads the stream with a token: the status, and the messages or the code of the error. */
async function read(encke, token) {
  const response = await fetch(`${encke.url}/v1/stream/a`, { headers: { Authorization: `Bearer ${token}` } });
  const body = await response.json();
  return [response.status, response.ok ? body : body.error.code];
}

/** Reads as a client does that tries again while the server has no keys of the issuer and is about to fetch them. */
async function readPatiently(encke, token) {
  for (let attempt = 0; attempt < 20; attempt += 1) {
    const answer = await read(encke, token);
    if (answer[1] !== 'keys_unknown') return answer;
  }
  throw new Error('the keys are fetched without an end');
}

const refused = (code) => [401, code];
const UNAVAILABLE = [503, 'keys_unavailable'];

/** Claims that are wrong in one respect, and the code of the refusal. */
const WRONG_CLAIMS = [
  ['wrong audience', () => ({ aud: 'other' }), 'audience'],
  ['several wrong audiences', () => ({ aud: ['other', `${AUDIENCE}/`] }), 'audience'],
  ['no audience', () => ({ aud: undefined }), 'claim'],
  ['expired', () => ({ exp: seconds(-600) }), 'expired'],
  ['no end', () => ({ exp: undefined }), 'claim'],
  ['not yet valid', () => ({ nbf: seconds(600) }), 'not_yet_valid'],
  ['issued in the future', () => ({ iat: seconds(600) }), 'not_yet_valid'],
  ['wrong issuer', () => ({ iss: issuerOf('unknown') }), 'unknown_issuer'],
  ['no issuer', () => ({ iss: undefined }), 'unknown_issuer'],
];

const unsigned = (header, payload) => `${Buffer.from(JSON.stringify(header)).toString('base64url')}.${payload}.`;

test('a token of every algorithm is accepted, and refused with wrong claims, another signature or alg none', async (t) => {
  const keyServer = await startKeys(t);
  const url = keyServer.respond('/keys', keySet(PUBLIC.map((alg) => keys[alg].jwk)));
  const secrets = SECRETS.map((alg) => issuer(alg, [alg], { keys: JSON.stringify({ keys: [keys[alg].jwk] }) }));
  const encke = await start(t, [...secrets, issuer('public', CONFIGURED, { 'jwks-url': url })]);
  for (const alg of [...SECRETS, ...PUBLIC]) {
    const name = SECRETS.includes(alg) ? alg : 'public';
    const iss = issuerOf(name);
    const own = keys[alg];
    const good = await sign(own, claims(iss));
    const several = { aud: ['other', AUDIENCE], iat: seconds(0), nbf: seconds(-10), exp: Date.now() / 1000 + 600.5 };
    const [header, payload, signature] = good.split('.');
    const changed = Buffer.from(JSON.stringify(claims(iss, { sub: 'bob' }))).toString('base64url');
    const cases = [
      ['good', good, OK],
      ['several audiences, a fraction of a second', await sign(own, claims(iss, several)), OK],
      ['another key of the same name', await sign(foreign[alg], claims(iss)), refused('signature')],
      ['changed claims', `${header}.${changed}.${signature}`, refused('signature')],
      ['no signature', `${header}.${payload}.`, refused('signature')],
      ['alg none', new UnsecuredJWT(claims(iss)).encode(), refused('algorithm')],
      ['alg none with a kid', unsigned({ alg: 'none', kid: own.kid }, payload), refused('algorithm')],
      ['alg NONE with a signature', unsigned({ alg: 'NONE', kid: own.kid }, payload) + signature, refused('algorithm')],
    ];
    for (const [what, wrong, code] of WRONG_CLAIMS) cases.push([what, await sign(own, claims(iss, wrong())), refused(code)]);
    await Promise.all(
      cases.map(async ([what, token, expected]) => assert.deepEqual(await read(encke, token), expected, `${alg}: ${what}`)),
    );
    // The issuer of another key.
    const [status] = await read(encke, await sign(own, claims(issuerOf(name === 'HS256' ? 'HS384' : 'HS256'))));
    assert.equal(status, 401, `${alg}: the issuer of another key`);
  }
  // A key works with the one algorithm that its issuer published it for.
  const token = await sign({ ...keys.PS256, kid: keys.RS256.kid }, claims(issuerOf('public')));
  assert.deepEqual(await read(encke, token), refused('algorithm'));
  const unsupported = await sign(await key('ES512', keys.ES256.kid), claims(issuerOf('public')));
  assert.deepEqual(await read(encke, unsupported), refused('algorithm'));
  assert.equal(keyServer.requests('/keys'), 1);
});

test('secrets of several algorithms stand in one set, each as long as its own needs', async (t) => {
  const set = { keys: SECRETS.map((alg) => keys[alg].jwk) };
  const encke = await start(t, [issuer('i', SECRETS, { keys: JSON.stringify(set) })]);
  for (const alg of SECRETS) assert.deepEqual(await read(encke, await sign(keys[alg], claims(issuerOf('i')))), OK, alg);
});

test('a public key is no secret of HS256', async (t) => {
  const { kid, jwk, publicKey } = keys.RS256;
  const withoutAlg = { kty: jwk.kty, n: jwk.n, e: jwk.e, kid };
  const issuers = [
    issuer('bound', ['RS256'], { keys: JSON.stringify({ keys: [jwk] }) }),
    issuer('any', CONFIGURED, { keys: JSON.stringify({ keys: [withoutAlg] }) }),
  ];
  const encke = await start(t, issuers);
  const pem = await exportSPKI(publicKey);
  const der = Buffer.from(pem.replace(/-----[A-Z ]+-----|\s/g, ''), 'base64');
  const spellings = { pem, line: `${pem}\n`, der, modulus: Buffer.from(jwk.n, 'base64url'), n: jwk.n, jwk: JSON.stringify(jwk) };
  for (const name of ['bound', 'any']) {
    assert.deepEqual(await read(encke, await sign(keys.RS256, claims(issuerOf(name)))), OK);
    for (const [spelling, secret] of Object.entries(spellings)) {
      for (const header of [{}, { kid: undefined }]) {
        const token = await sign({ alg: 'HS256', kid, signs: Buffer.from(secret) }, claims(issuerOf(name)), header);
        assert.deepEqual(await read(encke, token), refused('algorithm'), `${name}: ${spelling} ${JSON.stringify(header)}`);
      }
    }
  }
});

test('keys that a token brings along or points to are not read', async (t) => {
  const keyServer = await startKeys(t);
  const url = keyServer.respond('/keys', keySet([keys.ES256.jwk]));
  const encke = await start(t, [issuer('i', ['ES256'], { 'jwks-url': url })]);
  const own = foreign.ES256;
  const elsewhere = keyServer.respond('/elsewhere', keySet([own.jwk]));
  for (const header of [{ jku: elsewhere }, { x5u: elsewhere }, { jwk: own.jwk }]) {
    const token = await sign(own, claims(issuerOf('i')), header);
    assert.deepEqual(await read(encke, token), refused('signature'), JSON.stringify(header));
  }
  const token = await sign(own, claims(issuerOf('i')), { kid: elsewhere });
  assert.deepEqual(await read(encke, token), refused('unknown_key'));
  assert.equal(keyServer.requests('/elsewhere'), 0);
});

test('keys are rotated: requests with the new one wait for one fetch, and the old one ends', async (t) => {
  const keyServer = await startKeys(t);
  const [old, fresh] = await Promise.all([key('ES256', 'old'), key('ES256', 'new')]);
  const url = keyServer.respond('/keys', keySet([old.jwk]));
  const encke = await start(t, [issuer('i', ['ES256'], { 'jwks-url': url })], { 'jwks-timeout': '60s' });
  const iss = issuerOf('i');
  const cached = await sign(old, claims(iss));
  assert.deepEqual(await read(encke, cached), OK);
  const rotated = slow([fresh.jwk]);
  keyServer.respond('/keys', rotated.respond);
  const requests = Array.from({ length: 20 }, async (_, number) => {
    const token = await sign(fresh, claims(iss, { sub: `user-${number}` }));
    return read(encke, token);
  });
  let settled = 0;
  for (const request of requests) void request.then(() => (settled += 1));
  await keyServer.requested('/keys', 2);
  // The old key stays in use until the new set is whole.
  assert.deepEqual(await read(encke, await sign(old, claims(iss, { sub: 'bob' }))), OK);
  assert.equal(settled, 0);
  rotated.release();
  for (const answer of await Promise.all(requests)) assert.deepEqual(answer, OK);
  assert.deepEqual(await read(encke, cached), refused('unknown_key'));
  assert.deepEqual(await read(encke, await sign(old, claims(iss))), refused('unknown_key'));
  // Each is looked for, until too many fetches have begun: then nothing is said of a key before the next one.
  let last;
  for (let number = 0; number < 5; number += 1) {
    last = await read(encke, await sign({ ...fresh, kid: `invented-${number}` }, claims(iss)));
    assert.ok([401, 503].includes(last[0]), `${last}`);
  }
  assert.deepEqual(last, UNAVAILABLE);
  assert.ok(keyServer.requests('/keys') <= 5, `${keyServer.requests('/keys')} fetches`);
});

test('a key of the same name is replaced', async (t) => {
  const keyServer = await startKeys(t);
  const [old, fresh, other] = await Promise.all([key('EdDSA', 'same'), key('EdDSA', 'same'), key('EdDSA', 'other')]);
  const url = keyServer.respond('/keys', keySet([old.jwk]));
  const encke = await start(t, [issuer('i', ['EdDSA'], { 'jwks-url': url })]);
  const iss = issuerOf('i');
  const cached = await sign(old, claims(iss));
  assert.deepEqual(await read(encke, cached), OK);
  keyServer.respond('/keys', keySet([fresh.jwk, other.jwk]));
  assert.deepEqual(await read(encke, await sign(other, claims(iss))), OK);
  assert.deepEqual(await read(encke, cached), refused('signature'));
  assert.deepEqual(await read(encke, await sign(fresh, claims(iss))), OK);
});

test('a slow server of keys delays only the requests that need its keys', async (t) => {
  const keyServer = await startKeys(t);
  const { respond, release } = slow([keys.RS256.jwk]);
  const issuers = [
    issuer('slow', ['RS256'], { 'jwks-url': keyServer.respond('/slow', respond) }),
    issuer('own', ['HS256'], { keys: JSON.stringify({ keys: [keys.HS256.jwk] }) }),
  ];
  const encke = await start(t, issuers, { 'jwks-timeout': '60s' });
  await keyServer.requested('/slow', 1);
  let settled = false;
  const waiting = read(encke, await sign(keys.RS256, claims(issuerOf('slow')))).finally(() => (settled = true));
  for (let number = 0; number < 10; number += 1) {
    assert.deepEqual(await read(encke, await sign(keys.HS256, claims(issuerOf('own'), { jti: `${number}` }))), OK);
  }
  assert.equal(settled, false);
  release();
  assert.deepEqual(await waiting, OK);
  assert.equal(keyServer.requests('/slow'), 1);
});

test('a request waits for the keys of its own issuer, whichever others arrive', async (t) => {
  const keyServer = await startKeys(t);
  const [first, second] = [slow([keys.ES256.jwk]), slow([keys.ES256.jwk])];
  const issuers = [
    issuer('first', ['ES256'], { 'jwks-url': keyServer.respond('/first', first.respond) }),
    issuer('second', ['ES256'], { 'jwks-url': keyServer.respond('/second', second.respond) }),
  ];
  const encke = await start(t, issuers, { 'jwks-timeout': '60s' });
  const [ofFirst, ofSecond] = await Promise.all(issuers.map(({ issuer: iss }) => sign(keys.ES256, claims(iss))));
  const answers = Promise.all([read(encke, ofFirst), read(encke, ofSecond)]);
  await keyServer.requested('/first', 1);
  // Until these are answered, the server has most likely seen both; one that comes later is accepted, too.
  for (let number = 0; number < 10; number += 1) await read(encke, 'unknown');
  first.release();
  await keyServer.requested('/second', 1);
  second.release();
  assert.deepEqual(await answers, [OK, OK]);
});

test('a stop does not wait for servers of keys', async (t) => {
  const keyServer = await startKeys(t);
  const encke = await start(t, [issuer('i', ['ES256'], { 'jwks-url': keyServer.respond('/silent', silent) })], { 'jwks-timeout': '60s' });
  await keyServer.requested('/silent', 1);
  await encke.stop();
});

test('a server of keys that takes longer than jwks-timeout is given up', async (t) => {
  const keyServer = await startKeys(t);
  const faults = { silent, trickling };
  const issuers = Object.entries(faults).map(([name, respond]) =>
    issuer(name, ['ES256'], { 'jwks-url': keyServer.respond(`/${name}`, respond) }),
  );
  const encke = await start(t, issuers, { 'jwks-timeout': '300ms' });
  const ask = async (name) => readPatiently(encke, await sign(keys.ES256, claims(issuerOf(name))));
  const answers = await Promise.all(Object.keys(faults).map(ask));
  for (const answer of answers) assert.deepEqual(answer, UNAVAILABLE);
});

test('redirects are not followed', async (t) => {
  const keyServer = await startKeys(t);
  const target = keyServer.respond('/target', keySet([keys.ES256.jwk]));
  const statuses = [301, 302, 303, 307, 308];
  const issuers = statuses.map((status) =>
    issuer(`r${status}`, ['ES256'], { 'jwks-url': keyServer.respond(`/${status}`, redirect(status, target)) }),
  );
  const encke = await start(t, issuers);
  for (const status of statuses) {
    const token = await sign(keys.ES256, claims(issuerOf(`r${status}`)));
    assert.deepEqual(await readPatiently(encke, token), UNAVAILABLE, `${status}`);
    assert.ok(keyServer.requests(`/${status}`) > 0);
  }
  assert.equal(keyServer.requests('/target'), 0);
});

test('the last good keys stay in use when their server disappears', async (t) => {
  const keyServer = await startKeys(t);
  const url = keyServer.respond('/keys', keySet([keys.PS384.jwk]));
  const encke = await start(t, [issuer('i', ['PS384'], { 'jwks-url': url })]);
  const iss = issuerOf('i');
  assert.deepEqual(await read(encke, await sign(keys.PS384, claims(iss))), OK);
  await keyServer.close();
  // This one waits until the fetch has failed.
  assert.deepEqual(await read(encke, await sign({ ...keys.PS384, kid: 'invented' }, claims(iss))), UNAVAILABLE);
  await printed(encke, "can't be fetched; the last good ones stay in use");
  assert.deepEqual(await read(encke, await sign(keys.PS384, claims(iss, { sub: 'bob' }))), OK);
});

test('10 MB of keys are refused, and do not stay in memory', async (t) => {
  const keyServer = await startKeys(t);
  const names = ['length', 'chunked', 'gzip'];
  const path = (name) => `/${name}`;
  const issuers = names.map((name) => issuer(name, ['ES256'], { 'jwks-url': keyServer.respond(path(name), keySet([keys.ES256.jwk])) }));
  const encke = await start(t, issuers);
  const ask = async (name, sub) => readPatiently(encke, await sign(keys.ES256, claims(issuerOf(name), { sub })));
  for (const name of names) assert.deepEqual(await ask(name, 'ann'), OK);
  const fresh = { ...foreign.ES256, kid: 'new', jwk: { ...foreign.ES256.jwk, kid: 'new' } };
  for (const name of names) keyServer.respond(path(name), oversized([fresh.jwk], name));
  const before = peakBytes(encke.pid);
  for (const name of names) {
    assert.deepEqual(await read(encke, await sign(fresh, claims(issuerOf(name)))), UNAVAILABLE, name);
    assert.equal(keyServer.requests(path(name)), 2);
    assert.deepEqual(await ask(name, 'bob'), OK, name);
  }
  const grown = peakBytes(encke.pid) - before;
  console.log(`peak memory grew by ${grown / 1024} KiB with ${names.length} sets of 10 MB`);
  assert.ok(grown < 4 << 20, `${grown} bytes`);
});

/** Waits until a server has printed a text. */
async function printed(encke, text) {
  for (const begun = performance.now(); !encke.output.includes(text); await sleep(5)) {
    assert.ok(performance.now() - begun < 30_000, `not printed: ${text}\n${encke.output}`);
  }
}

/** The most memory that a process had so far. */
function peakBytes(pid) {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)[1]) * 1024;
}
