// The page for operators of a server with access control: why something was refused, what a credential allows, who calls, and what the page
// may do with a token and without.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { BINARY } from '../encke.mjs';
import { waitFor as until } from '../wait.mjs';
import { launchChromium } from './chromium.mjs';
import { must, openPage, startGuarded, subscribe } from './operator-page.mjs';

const CONFIG = `
[access]
[[access.issuers]]
name = "backend"
issuer = "https://backend.example"
audience = "encke"
algorithms = ["HS256"]
secret = "for-tests-only-for-tests-only-for-tests-only"
grants = [{ actions = ["read", "append", "create", "delete", "list", "admin", "own"], paths = ["/**"] }]
`;

const folder = mkdtempSync(join(tmpdir(), 'encke-operator-access-'));
let server;
let browser;

before(async () => {
  writeFileSync(join(folder, 'encke.toml'), CONFIG, { mode: 0o600 });
  server = await startGuarded(CONFIG);
  browser = await launchChromium();
});

after(async () => {
  await browser?.close();
  await server?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const tokenOf = (sub, allow) =>
  execFileSync(BINARY, ['token', '--config', join(folder, 'encke.toml'), '--sub', sub, '--allow', allow], { encoding: 'utf8' }).trim();
const bearer = (token) => ({ Authorization: `Bearer ${token}` });
const EVERYTHING = 'read,append,create,delete,list,admin,own=/**';
const rowTexts = async (page, table) => {
  const rows = await page.getByRole('table', { name: table }).locator('tbody tr').allInnerTexts();
  return rows.map((text) => text.replaceAll(/\s+/g, ' '));
};
const refusals = 'The last requests that were refused, the newest first';
const connections = 'Connections, and subscriptions of those that have several';

async function useToken(page, token) {
  await page.getByRole('button', { name: /^Token/ }).click();
  await page.getByRole('dialog').getByLabel('Token').fill(token);
  await page.getByRole('dialog').getByRole('button', { name: 'Use it' }).click();
}

test('why a request was refused, and what its token allows', async () => {
  const token = tokenOf('ann', 'read=/v1/stream/chat/**');
  await fetch(`${server.encke.url}/v1/stream/news`, { headers: bearer(token) });
  const { page, complaints } = await openPage(browser, server.encke.operators, 'access');
  await until('the refusal is shown', async () => (await rowTexts(page, refusals)).some((row) => /concealed 404 ann .*GET \/v1\/stream\/news 1/.test(row)));
  await page.getByRole('button', { name: 'Explain GET /v1/stream/news' }).first().click();
  assert.equal(await page.getByLabel('Path').inputValue(), '/v1/stream/news');
  await page.getByLabel('Token or API key').fill(token);
  await page.getByRole('button', { name: 'Explain', exact: true }).last().click();
  await page.getByText('The request would be refused.').waitFor();
  await page.getByText('no grant of the caller allows read on /v1/stream/news').waitFor();
  await page.getByLabel('Path').fill('/v1/stream/chat/a');
  await page.getByRole('button', { name: 'Explain', exact: true }).last().click();
  await page.getByText('The request would be allowed.').waitFor();
  await page.getByLabel('Token or API key').fill('nonsense');
  await page.getByRole('button', { name: 'Explain', exact: true }).last().click();
  await page.getByText('The request would be refused.').waitFor();
  assert.ok(!server.encke.output.includes(token), 'no log has the token');
  assert.deepEqual(complaints, []);
});

test('who is connected as a caller, and the end of its credentials', async () => {
  const [ann, bob] = ['ann', 'bob'].map((sub) => tokenOf(sub, EVERYTHING));
  const stream = `${server.encke.url}/v1/stream/shared`;
  await must('PUT', stream, { headers: { ...bearer(ann), 'Content-Type': 'text/plain' } });
  const readers = [ann, bob].map((token) => subscribe(`${stream}?offset=-1&live=sse`, bearer(token)));
  await until('both have begun', () => readers.every((reader) => reader.text));
  const { page, complaints } = await openPage(browser, server.encke.operators, 'connections');
  await page.getByLabel('By the caller').fill('bob');
  await page.getByRole('button', { name: 'Show' }).click();
  await until('one of both is shown', async () => {
    const rows = await rowTexts(page, connections);
    return rows.length === 1 && /127\.0\.0\.1 bob .*shared/.test(rows[0]);
  });
  await page.getByRole('combobox', { name: 'By', exact: true }).selectOption('caller');
  await until('callers are told apart', async () => {
    const rows = await rowTexts(page, 'The largest groups of connections');
    return ['ann', 'bob'].every((sub) => rows.some((row) => row.startsWith(`${sub} caller, backend 1`)));
  });
  await page.getByRole('link', { name: 'Access' }).click();
  await page.getByRole('button', { name: 'Revoke…' }).click();
  await page.getByRole('dialog').getByRole('textbox', { name: 'Name' }).fill('bob');
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke them' }).click();
  await page.getByText('They are revoked.').waitFor();
  await until('the subscription of bob ends', () => readers[1].ended);
  assert.equal(readers[0].ended, false);
  readers[0].close();
  assert.deepEqual(complaints, []);
});

test('what is stored needs a token with a grant, at the address for operators too', async () => {
  const operator = tokenOf('operator', EVERYTHING);
  const stream = `${server.encke.url}/v1/stream/private`;
  await must('PUT', stream, { headers: { ...bearer(operator), 'Content-Type': 'text/plain', 'Encke-Metadata': '{"of":"ann"}' } });
  await must('POST', stream, { headers: { ...bearer(operator), 'Content-Type': 'text/plain' }, body: 'a secret' });
  const { page, complaints } = await openPage(browser, server.encke.operators, 'streams?name=private');
  await page.getByText('not shown:').waitFor();
  await page.getByRole('button', { name: 'Follow' }).click();
  await page.getByRole('alert').filter({ hasText: 'The button Token'.replace('The', 'the') }).waitFor();
  assert.ok(!(await page.content()).includes('a secret'));
  await useToken(page, operator);
  await page.getByText('"of": "ann"').waitFor();
  await page.getByRole('button', { name: 'Follow' }).click();
  await page.getByRole('listitem').filter({ hasText: 'a secret' }).waitFor();
  assert.deepEqual(complaints.filter((text) => !/40[13]/.test(text)), []);
});

test('at the address of clients the page needs a token that grants admin', async () => {
  const { page, complaints } = await openPage(browser, server.encke.url);
  await page.getByRole('alert').filter({ hasText: 'the button Token' }).waitFor();
  await useToken(page, tokenOf('reader', 'read=/**'));
  await page.getByRole('alert').filter({ hasText: 'may not admin' }).waitFor();
  await useToken(page, tokenOf('operator', EVERYTHING));
  await page.getByText('shard-0').waitFor();
  await page.getByRole('alert').waitFor({ state: 'hidden' });
  // It is forgotten with the page.
  await page.reload();
  await page.getByRole('alert').filter({ hasText: 'the button Token' }).waitFor();
  assert.deepEqual(complaints.filter((text) => !/40[13]/.test(text)), []);
});
