// Pools: their jobs by state, their workers, pause, and dead letters that can be posted again or discarded.

import { followLines, get, pathOf, send, withQuery } from './api.js';
import { Table, ask, clock, count, field, h, lineForm, say, seconds, section, setText } from './elements.js';

const ROOT = '/v1/pool/';
/** Pools whose counts are asked for at a time. */
const COUNTED_MAX = 20;
/** Dead letters that are shown: the last ones. */
const LETTERS_MAX = 50;

function begin(given, page) {
  if (given.name !== undefined) return beginOne(given.name, page);
  let names = [];
  let wanted = given.filter ?? '';
  const list = new Table('Pools', [
    {
      title: 'Name',
      name: true,
      make: (row) => h('a', { href: `#${withQuery('pools', { name: row.current.name })}` }, row.current.name),
    },
    { title: 'Workers', text: ({ status }) => count(status?.workers.filter((one) => one.connected).length), number: true },
    { title: 'Waiting', text: ({ status }) => count(status?.waiting), number: true },
    { title: 'Running', text: ({ status }) => count(status?.running), number: true },
    { title: 'Done', text: ({ status }) => count(status?.done), number: true },
    { title: 'Retried', text: ({ status }) => count(status?.retried), number: true },
    { title: 'Dead', text: ({ status }) => count(status?.dead), number: true },
    { title: 'Oldest job', text: ({ status }) => seconds(status?.oldest_s), number: true },
    { title: 'State', text: ({ status }) => (status?.settings.paused ? 'paused' : status ? 'runs' : '–') },
  ], 'There are no pools with such a name.');
  const note = h('p', { class: 'quiet' });
  const form = lineForm(({ filter }) => {
    wanted = filter;
    page.refresh();
  }, field('Name contains', h('input', { name: 'filter', value: wanted, autocomplete: 'off' })), h('button', { type: 'submit', class: 'main' }, 'Show'));
  return {
    element: section('Pools', form, list.element, note),
    everySeconds: 5,
    async refresh(signal) {
      const answer = await get('/v1/pool', signal);
      names = answer.pools.map((pool) => pool.name ?? pool).filter((name) => name.includes(wanted));
      const shown = names.slice(0, COUNTED_MAX);
      const rows = [];
      for (const name of shown) rows.push({ name, status: await get(pathOf(ROOT, name), signal) });
      list.update(rows, (row) => row.name);
      setText(note, names.length > COUNTED_MAX ? `The first ${COUNTED_MAX} of ${count(names.length)}: filter by name for others.` : '');
    },
  };
}

function beginOne(name, page) {
  const path = pathOf(ROOT, name);
  const letters = new Table('The last jobs whose attempts have all failed', [
    { title: 'Job', text: (one) => one.job, number: true },
    { title: 'Died at', text: (one) => clock(one.timeMs) },
    { title: 'Last reason', text: (one) => one.reason ?? '–', name: true },
    { title: 'Content', text: (one) => String(contentOf(one).text).slice(0, 200), name: true },
    {
      title: 'Again',
      make: (row) => h('button', { type: 'button', 'aria-label': `Retry job ${row.current.job}`, click: () => retry(row.current) }, 'Retry'),
    },
    {
      title: 'Discard',
      make: (row) => h('button', {
        type: 'button',
        class: 'danger',
        'aria-label': `Discard to here: job ${row.current.job} and all before`,
        click: () => discard(row.current),
      }, 'Discard to here'),
    },
  ], 'There are no dead letters.');
  const workers = new Table('Workers', [
    { title: 'Name', text: (one) => one.name ?? one.worker, name: true },
    { title: 'Slot', text: (one) => one.slot, number: true },
    { title: 'State', text: (one) => (one.connected ? 'connected' : 'away') },
    { title: 'Jobs now', text: (one) => count(one.running ?? one.jobs), number: true },
    { title: 'Done', text: (one) => count(one.done), number: true },
  ], 'No worker has registered.');
  const facts = h('dl', { class: 'figures' });
  const pause = h('button', { type: 'button', click: () => toggle() });
  let paused = false;
  let strategy = '';
  let seen = -1;
  const change = (settings) =>
    send(path, { method: 'PATCH', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(settings) });
  const toggle = () => page.act(() => change({ paused: !paused }), paused ? `${name} runs again.` : `${name} is paused: its jobs wait.`);
  const retry = async (letter) => {
    let slot;
    // A letter does not have the slot that the job was posted to.
    if (strategy === 'direct') {
      const fields = [field('Slot', h('input', { name: 'slot', inputmode: 'numeric', required: true, autocomplete: 'off' }))];
      const answer = await ask(`Post job ${letter.job} again`, { fields, confirm: 'Post it' });
      if (!answer) return;
      slot = answer.slot;
    }
    await page.act(async () => {
      const { type, body } = contentOf(letter);
      const options = { method: 'POST', headers: { 'Content-Type': type }, body };
      const response = await send(withQuery(path, { key: letter.key, slot }), options);
      say(`Job ${letter.job} was posted again as job ${response.headers.get('job-id')}.`);
    });
  };
  const discard = async (letter) => {
    const text = `The dead letters of ${name} up to job ${letter.job} are removed, with all that died before it.`;
    if (!(await ask('Discard these dead letters?', { text, confirm: 'Discard them', danger: true }))) return;
    seen = -1;
    await page.act(() => send(deadLetters(name), { method: 'POST', headers: { 'Encke-Truncate': letter.offset } }), 'They are discarded.');
  };
  return {
    element: h('div', {},
      section(name, facts, h('div', { class: 'actions' }, pause)),
      section('Workers', workers.element),
      section('Dead letters', letters.element)),
    everySeconds: 5,
    async refresh(signal) {
      const status = await get(path, signal);
      ({ paused, type: strategy } = status.settings);
      setText(pause, paused ? 'Resume' : 'Pause');
      const figures = [
        ['State', paused ? 'paused' : 'runs'],
        ['Type', strategy],
        ['Waiting', count(status.waiting)],
        ['Running', count(status.running)],
        ['Done', count(status.done)],
        ['Retried', count(status.retried)],
        ['Dead', count(status.dead)],
        ['Oldest job', seconds(status.oldest_s)],
      ];
      facts.replaceChildren(...figures.map(([title, value]) => h('div', {}, h('dt', {}, title), h('dd', {}, value))));
      workers.update(status.workers, (one) => one.slot);
      // They are read again only if there are others.
      if (status.dead !== seen) {
        const found = await readLetters(name, signal);
        letters.update(found.reverse(), (one) => one.offset);
        seen = status.dead;
      }
    },
  };
}

const deadLetters = (name) => pathOf('/v1/stream/', `pool/${name}/dead`);

/** The last dead letters, each with the offset behind it. */
async function readLetters(name, signal) {
  const found = [];
  const path = withQuery(deadLetters(name), { last: LETTERS_MAX, live: 'true', times: 'true' });
  await followLines(path, ({ offset, timeMs, data, control }) => {
    if (data !== undefined) found.push({ ...data, offset, timeMs });
    return !control?.upToDate;
  }, signal);
  return found;
}

/** The content of a letter: its type, its body as it was posted, and a text for people. */
function contentOf({ type = 'application/octet-stream', data, encoding }) {
  if (encoding === 'base64') {
    return { type, text: `base64: ${data}`, body: Uint8Array.from(atob(data), (character) => character.charCodeAt(0)) };
  }
  const text = typeof data === 'string' && !/json/i.test(type) ? data : JSON.stringify(data);
  return { type, text, body: text };
}

/** Pools, and one of them. */
export const pools = { title: 'Pools', begin };
