// The page: posts images as jobs, and shows what the pool says of them. Each job is a card that moves between four lanes.

import { follow } from './follow.js';

const STATES = {
  connecting: 'connecting',
  live: 'live',
  away: 'server away, reconnecting',
  missing: 'no such pool',
};
/** Where an event moves the card of its job. */
const LANES = { posted: 'waiting', started: 'working', failed: 'waiting', waits: 'waiting', done: 'done', dead: 'failed' };
/** A lane shows its newest cards only; its count counts all. */
const CARDS_MAX = 60;
/** The pool is asked for its counts at most once in this time. */
const REFRESH_MS = 100;

const byId = (id) => document.getElementById(id);
const lane = (name) => document.querySelector(`[data-lane="${name}"]`);
const encke = new URLSearchParams(location.search).get('encke') ?? `http://${location.hostname}:4437`;
const pool = `${encke}/v1/pool/thumbnails`;
/** The card of each job that is shown. */
const cards = new Map();

byId('source').textContent = pool;
byId('files').addEventListener('change', async ({ target }) => {
  const files = [...target.files];
  // At once: what the user chooses meanwhile stays.
  target.value = '';
  await post(files);
});
byId('samples').addEventListener('click', async () => post(await Promise.all(Array.from({ length: 12 }, draw))));
follow({ encke, name: 'thumbnails', onMessage: { events: showEvent, results: showResult, dead: showDead }, onState: showState });

/** An event of a job or of a worker. Events are for displays and can be missing after a crash of the server. */
function showEvent({ event, job, worker, attempt }) {
  refresh();
  if (job === undefined) return;
  // The dead letter of a job can come before the event of its last failure.
  if (event === 'failed' && cards.get(job)?.parentElement === lane('failed')) return;
  const by = attempt > 1 ? `${worker}, attempt ${attempt}` : worker;
  const notes = { posted: '', started: by, failed: '', waits: `attempt ${attempt} failed`, done: by };
  place(job, LANES[event], notes[event]);
}

/** A result. It can come twice after a crash of the server; the last one counts. */
function showResult({ job, type, encoding, data }) {
  const card = place(job, 'done');
  const image = card.querySelector('img') ?? document.createElement('img');
  image.alt = `Thumbnail of job ${job}`;
  image.src = encoding === 'base64' ? `data:${type};base64,${data}` : 'data:,';
  card.prepend(image);
}

function showDead({ job, attempts, reason }) {
  place(job, 'failed', `${attempts} attempts, ${reason}`);
}

function showState(state) {
  document.body.dataset.state = state;
  byId('state').textContent = STATES[state];
  if (state === 'live') refresh();
}

/** Moves the card of a job to the top of a lane, and makes it if there is none. Without a note it keeps the one it has. */
function place(job, laneName, note) {
  let card = cards.get(job);
  if (!card) {
    card = document.createElement('li');
    card.dataset.job = job;
    card.append(text('b', `#${job}`), text('span', ''));
    cards.set(job, card);
  }
  if (note !== undefined) card.querySelector('span').textContent = note;
  const list = lane(laneName);
  if (card.parentElement === list) return card;
  list.prepend(card);
  if (list.childElementCount > CARDS_MAX) {
    cards.delete(Number(list.lastElementChild.dataset.job));
    list.lastElementChild.remove();
  }
  return card;
}

let asking = false;
let stale = false;

/** Shows the counts and the workers as the pool has them, which also holds when events were lost. */
async function refresh() {
  stale = true;
  if (asking) return;
  asking = true;
  while (stale) {
    await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
    stale = false;
    // When there is no answer, `follow` says so and this is called again later.
    const answer = await fetch(pool).catch(() => undefined);
    if (answer?.ok) showPool(await answer.json());
  }
  asking = false;
}

function showPool({ waiting, running, done, dead, workers }) {
  for (const [id, count] of Object.entries({ waiting, working: running, done, failed: dead })) {
    byId(id).textContent = count.toLocaleString('en');
  }
  byId('workers').replaceChildren(
    ...workers.map(({ name, connected, running, done }) => {
      const item = document.createElement('li');
      item.dataset.state = !connected ? 'gone' : running > 0 ? 'working' : 'idle';
      item.append(text('b', name), text('span', `${item.dataset.state}, ${done.toLocaleString('en')} done`));
      return item;
    }),
  );
}

/** Posts images one after the other, and says which of them the server did not take. */
async function post(images) {
  const problems = [];
  for (const image of images) {
    const sent = fetch(pool, { method: 'POST', headers: { 'Content-Type': image.type || 'application/octet-stream' }, body: image });
    const problem = await sent.then(reason, () => 'the server is away');
    if (problem) problems.push(`${image.name ?? 'A drawing'} was not sent: ${problem}.`);
    byId('problem').textContent = problems.join(' ');
  }
}

/** Why the server refused a job, if it did. */
async function reason(answer) {
  if (answer.ok) return undefined;
  const body = await answer.json().catch(() => undefined);
  return body?.error.message ?? `status ${answer.status}`;
}

/** A random picture. */
function draw(_, number) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [640, 480];
  const brush = canvas.getContext('2d');
  for (let circle = 0; circle < 60; circle += 1) {
    brush.fillStyle = `hsl(${(number * 30 + circle * 3) % 360} 70% ${30 + circle / 2}%)`;
    brush.beginPath();
    brush.arc(Math.random() * 640, Math.random() * 480, 20 + Math.random() * 60, 0, 7);
    brush.fill();
  }
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
}

function text(name, content) {
  const element = document.createElement(name);
  element.textContent = content;
  return element;
}
