// The page for operators answers what operators ask: who is connected, which streams and pools there are, how the server is, and what can be
// done about it by hand.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { waitFor as until } from '../wait.mjs';
import { launchChromium, setHidden } from './chromium.mjs';
import { SECTIONS, ignore, must, openPage, startGuarded, subscribe } from './operator-page.mjs';

let server;
let browser;
let streams;
let pool;

before(async () => {
  server = await startGuarded();
  browser = await launchChromium();
  streams = `${server.encke.url}/v1/stream`;
  pool = `${server.encke.url}/v1/pool`;
  for (const [name, messages, size] of [['chat/small', 3, 10], ['chat/large', 2, 50_000], ['news', 1, 10]]) {
    await must('PUT', `${streams}/${name}`, { headers: { 'Content-Type': 'application/json', 'Encke-Metadata': '{"room":"blue"}' } });
    for (let number = 0; number < messages; number++) await must('POST', `${streams}/${name}`, { json: { number, text: 'x'.repeat(size) } });
  }
});

after(async () => {
  await browser?.close();
  await server?.stop();
});

const open = (hash, options) => openPage(browser, server.encke.operators, hash, options);
const rows = (page, table) => page.getByRole('table', { name: table }).locator('tbody tr');
const texts = async (page, table) => (await rows(page, table).allInnerTexts()).map((text) => text.replaceAll(/\s+/g, ' '));
const CONNECTIONS = 'Connections, and subscriptions of those that have several';

test('who is connected to a stream, and how to close that connection', async () => {
  const reader = subscribe(`${streams}/chat/small?offset=-1&live=sse`);
  const other = subscribe(`${streams}/news?offset=-1&live=sse`);
  const matching = subscribe(`${server.encke.url}/v1/events?stream=chat/**`);
  await until('the subscribers have begun', () => reader.text && other.text && matching.status === 200);
  const { page, complaints } = await open('connections');
  await page.getByLabel('Connected to the stream').fill('chat/small');
  await page.getByRole('button', { name: 'Show' }).click();
  await until('both subscribers are shown, and no other', async () => (await rows(page, CONNECTIONS).count()) === 2);
  const shown = await texts(page, CONNECTIONS);
  assert.ok(shown.some((text) => text.includes('chat/small subscribed')), shown.join('\n'));
  assert.ok(shown.some((text) => text.includes('chat/**')), shown.join('\n'));
  await rows(page, CONNECTIONS).filter({ hasText: 'chat/small' }).getByRole('button', { name: /^Close the connection/ }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Close it' }).click();
  await until('the client is told and closed', () => reader.ended);
  assert.match(reader.text, /an operator has closed the connection/);
  await until('the row is gone', async () => (await rows(page, CONNECTIONS).count()) === 1);
  assert.equal(other.ended, false);
  const closed = await server.encke.request('GET', '/metrics');
  assert.match(closed.body, /encke_connections_closed_total\{reason="disconnected"\} 1/);
  await until('it is in the audit log', () => /"audit":"admin","reason":"close_connection","caller":"operator"/.test(server.encke.output));
  // A name that is used again is another connection's.
  await page.getByLabel('Connected to the stream').fill('nothing/here');
  await page.getByRole('button', { name: 'Show' }).click();
  await page.getByRole('alert').filter({ hasText: 'there is no stream "nothing/here"' }).waitFor();
  other.close();
  matching.close();
  assert.deepEqual(complaints, []);
});

test('connections by address, and the largest groups', async () => {
  const readers = ['chat/small', 'chat/large'].map((name) => subscribe(`${streams}/${name}?offset=-1&live=sse`));
  await until('the subscribers have begun', () => readers.every((reader) => reader.text));
  const { page, complaints } = await open('connections');
  await page.getByLabel('From the address').fill('192.0.2.1');
  await page.getByRole('button', { name: 'Show' }).click();
  await page.getByText('No connection is like that.').waitFor();
  const groups = 'The largest groups of connections';
  await page.getByRole('button', { name: '127.0.0.1' }).click();
  await until('the address has connections', async () => (await rows(page, CONNECTIONS).count()) >= 2);
  assert.equal(await page.getByLabel('From the address').inputValue(), '127.0.0.1');
  await page.getByRole('combobox', { name: 'By', exact: true }).selectOption('stream');
  await until('the groups are streams', async () => (await texts(page, groups)).some((text) => text.startsWith('chat/large stream 1')));
  for (const reader of readers) reader.close();
  assert.deepEqual(complaints, []);
});

test('the slow ones', async () => {
  const idle = ignore(`${streams}/chat/large?offset=now&live=sse`);
  const { page, complaints } = await open('connections?slow=true');
  await page.getByText('No connection is like that.').waitFor();
  const text = 'y'.repeat(500_000);
  await until('the client is behind', async () => {
    await must('POST', `${streams}/chat/large`, { json: { text } });
    return (await server.encke.metric('encke_clients_behind')) > 0;
  });
  await until('it is shown', async () => (await texts(page, CONNECTIONS)).some((row) => /chat\/large .*(ms|s|min) .*[KM]iB/.test(row)));
  await page.goto(`${server.encke.operators}/admin#streams?name=chat%2Flarge`);
  await page.getByText('of which 1 are too slow').waitFor();
  idle.close();
  assert.deepEqual(complaints, []);
});

test('streams by prefix, and the largest by bytes and by messages', async () => {
  const { page, complaints } = await open('streams');
  await page.getByLabel('Name begins with').fill('chat/');
  await page.getByRole('button', { name: 'Show' }).click();
  const names = (table) => rows(page, table).locator('td:first-child').allInnerTexts();
  await until('the two are listed', async () => (await names('Streams by name')).join() === 'chat/large,chat/small');
  await page.getByLabel('Order').selectOption('bytes');
  await page.getByRole('button', { name: 'Show' }).click();
  const byBytes = 'Streams by bytes appended';
  await until('the largest comes first', async () => (await names(byBytes)).join() === 'chat/large,chat/small');
  await must('POST', `${streams}/chat/small`, { json: [...'abcdefghijklmnopqrstuvwxyz'.repeat(10)] });
  await page.getByLabel('Order').selectOption('messages');
  await page.getByRole('button', { name: 'Show' }).click();
  await until('the longest comes first', async () => (await names('Streams by messages')).join() === 'chat/small,chat/large');
  const [first] = await texts(page, 'Streams by messages');
  assert.match(first, /^chat\/small application\/json 263 /);
  assert.deepEqual(complaints, []);
});

test('one stream: metadata, subscribers, live records, publish and delete', async () => {
  await must('PUT', `${streams}/rooms/one`, { headers: { 'Content-Type': 'application/json', 'Encke-Metadata': '{"topic":"<b>blue</b>"}' } });
  const reader = subscribe(`${streams}/rooms/one?offset=-1&live=sse`);
  await until('the subscriber has begun', () => reader.text);
  const { page, complaints } = await open('streams?name=rooms%2Fone');
  await page.getByText('"topic": "<b>blue</b>"').waitFor();
  await page.getByText('1, of which 0 are too slow').waitFor();
  await page.getByRole('button', { name: 'Follow' }).click();
  await page.getByLabel('Content', { exact: true }).fill('{"said":"<i>hello</i>"}');
  await page.getByRole('button', { name: 'Publish' }).click();
  await page.getByRole('listitem').filter({ hasText: '{"said":"<i>hello</i>"}' }).waitFor();
  await until('the subscriber has it', () => reader.text.includes('hello'));
  // A record that another client appends comes as well.
  await must('POST', `${streams}/rooms/one`, { json: { said: 'by another' } });
  await page.getByRole('listitem').filter({ hasText: 'by another' }).waitFor();
  await page.getByRole('button', { name: 'Delete…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
  assert.equal((await fetch(`${streams}/rooms/one`, { method: 'HEAD' })).status, 200);
  await page.getByRole('button', { name: 'Delete…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete it' }).click();
  await page.getByText('rooms/one is deleted.').waitFor();
  assert.equal((await fetch(`${streams}/rooms/one`, { method: 'HEAD' })).status, 404);
  for (const [method, status] of [['POST', 204], ['DELETE', 204]]) {
    const line = new RegExp(`"reason":"change".*"method":"${method}","path":"/v1/stream/rooms/one","status":${status}`);
    // A thread of its own writes the audit log.
    await until('the audit log has it', () => line.test(server.encke.output));
  }
  assert.deepEqual(complaints, []);
});

test('publishing by hand creates a stream if that is wanted', async () => {
  const { page, complaints } = await open('streams');
  await page.getByLabel('Stream', { exact: true }).fill('by/hand');
  await page.getByLabel('Content type').fill('text/plain');
  await page.getByLabel('Content', { exact: true }).fill('first words');
  await page.getByRole('button', { name: 'Publish' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Create it' }).click();
  await page.getByText('Published to by/hand.').waitFor();
  assert.equal(await (await fetch(`${streams}/by/hand?offset=-1`)).text(), 'first words');
  await page.getByRole('link', { name: 'by/hand' }).click();
  await page.getByRole('heading', { name: 'by/hand' }).waitFor();
  assert.deepEqual(complaints, []);
});

test('a pool: workers, jobs by state, pause, and dead letters', async () => {
  await must('PUT', `${pool}/thumbs`, { json: { type: 'claim', attempts: 1 } });
  await must('POST', `${pool}/thumbs`, { body: 'cat.png', headers: { 'Content-Type': 'text/plain' } });
  const { page, complaints } = await open('pools');
  await until('the job waits', async () => (await texts(page, 'Pools')).some((row) => /^thumbs 0 1 0 0 0 0 .* runs$/.test(row)));
  await page.getByRole('link', { name: 'thumbs' }).click();
  await page.getByRole('button', { name: 'Pause' }).click();
  await page.getByText('thumbs is paused: its jobs wait.').waitFor();
  const worker = subscribe(`${pool}/thumbs/work?worker=anna`, { Accept: 'text/event-stream' });
  await until('the worker is registered', () => worker.text.includes('event: registered'));
  await until('it is shown', async () => (await texts(page, 'Workers')).some((row) => row.startsWith('anna 0 connected')));
  // Clients that make the pool at their start get no conflict because an operator has paused it.
  await must('PUT', `${pool}/thumbs`, { json: { type: 'claim', attempts: 1 } });
  assert.ok(!worker.text.includes('event: job'), 'a paused pool gives no job');
  await page.getByRole('button', { name: 'Resume' }).click();
  await until('the worker gets the job', () => worker.text.includes('event: job'));
  const job = Number(/^id: (\d+)$/m.exec(worker.text)[1]);
  await must('POST', `${pool}/thumbs/job/${job}/refuse?attempt=1`, { body: 'no such cat' });
  const letters = 'The last jobs whose attempts have all failed';
  await until('the letter is shown', async () => (await texts(page, letters)).some((row) => row.includes('no such cat cat.png')));
  await page.getByRole('button', { name: `Retry job ${job}` }).click();
  await page.getByText(new RegExp(`Job ${job} was posted again as job \\d+`)).waitFor();
  await until('the worker gets it again', () => worker.text.split('event: job').length === 3);
  assert.ok(worker.text.split('event: job')[2].includes('"data":"cat.png"'));
  await page.getByRole('button', { name: `Discard to here: job ${job} and all before` }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Discard them' }).click();
  await page.getByText('There are no dead letters.').waitFor();
  worker.close();
  assert.deepEqual(complaints, []);
});

test('the configuration with origins, the doctor, and the fleet', async () => {
  const { page, complaints } = await open('configuration');
  const settings = 'Settings, their values and where each comes from';
  await page.getByLabel('Name contains').fill('admin');
  await until('the flag is its origin', async () => (await texts(page, settings)).some((row) => row.startsWith('admin-listen "127.0.0.1:0" flag --admin-listen')));
  await page.getByLabel('Name contains').fill('heartbeat');
  await until('a default is its origin', async () => (await texts(page, settings)).some((row) => /^(tuning\.)?heartbeat .* default/.test(row)));
  await page.getByText('There is no access control.').waitFor();
  await page.getByRole('link', { name: 'Machine and fleet' }).click();
  await page.getByText('The server is by itself, and in no fleet.').waitFor();
  await page.getByRole('button', { name: 'Examine' }).click();
  await page.getByText(/The machine (suits|does not suit) [\d,]+ connections/).waitFor();
  const checks = await texts(page, 'Checks of the machine and of the data directory');
  assert.ok(checks.some((row) => row.includes('fdatasync')), checks.join('\n'));
  assert.ok(!checks.some((row) => row.includes('another process')), 'the server itself is no obstacle');
  assert.deepEqual(complaints, []);
});

test('no request goes elsewhere, and none while the tab is hidden', async () => {
  const { page, complaints, requests } = await open('server');
  await page.getByText('Queues between threads').first().waitFor();
  await page.getByText('shard-0').waitFor();
  await setHidden(page, true);
  const before = requests.length;
  // Longer than two refreshes.
  await page.waitForTimeout(11_000);
  assert.equal(requests.length, before, requests.slice(before).join('\n'));
  await setHidden(page, false);
  await until('it refreshes again', () => requests.length > before);
  const own = new URL(server.encke.operators).origin;
  assert.deepEqual(requests.filter(({ origin }) => origin !== own).map(String), []);
  const policy = (await fetch(`${server.encke.operators}/admin`)).headers.get('content-security-policy');
  assert.match(policy, /^default-src 'none'; script-src 'self';/);
  assert.doesNotMatch(policy, /unsafe|\*|https?:/);
  assert.deepEqual(complaints, []);
});

test('all of it by keyboard', async () => {
  const { page, complaints } = await open('server');
  await page.getByRole('heading', { name: 'Server', level: 1 }).waitFor();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to the content');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'content');
  for (const section of SECTIONS) {
    await page.getByRole('link', { name: section, exact: true }).focus();
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: section, level: 1 }).waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), 'content', 'what is read next is the section');
    assert.equal(await page.getByRole('navigation').locator('[aria-current]').innerText(), section);
  }
  await page.getByRole('link', { name: 'Streams', exact: true }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('link', { name: 'news' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('button', { name: 'Delete…' }).focus();
  await page.keyboard.press('Enter');
  await page.getByRole('dialog').waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({ state: 'hidden' });
  assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Delete…', 'the focus is where it was');
  assert.deepEqual(complaints, []);
});

test('what the server does, why it closed connections, and the last hour', async () => {
  const { page, complaints } = await open('server');
  await page.getByText('Records since start').waitFor();
  await until('the reason is counted', async () =>
    (await texts(page, 'Connections that the server closed, by reason')).some((row) => row.startsWith('disconnected 1')));
  // Two samples make a line, which takes the first twenty seconds of the server.
  const plot = page.getByRole('img', { name: /^Requests: / });
  await until('there is a line', async () => /^M.*L/.test(await plot.locator('path').first().getAttribute('d')));
  assert.match(await plot.getAttribute('aria-label'), /^Requests: [\d.,]+\/s, at most [\d.,]+\/s$/);
  await plot.hover();
  await page.getByText(/\d\d:\d\d:\d\d: requests [\d.,]+\/s/).waitFor();
  // It stays when the next sample comes while the pointer rests.
  const line = await plot.locator('path').first().getAttribute('d');
  await until('the next sample is drawn', async () => (await plot.locator('path').first().getAttribute('d')) !== line);
  assert.equal(await page.getByText(/\d\d:\d\d:\d\d: requests [\d.,]+\/s/).count(), 1);
  assert.deepEqual(complaints, []);
});
