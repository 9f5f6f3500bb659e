// The page: signs a user in, asks questions, and shows the user's answers, each of which is a stream.

import { follow } from './follow.js';

const STATES = { live: 'live', away: 'away, trying again' };
/** Why an answer ended, in words. */
const ENDS = {
  done: 'complete',
  stopped: 'stopped',
  failed: 'failed: the model broke off',
  abandoned: 'abandoned: the server of the chat fell silent',
};
/** Earlier answers than these are not shown. */
const ANSWERS_MAX = 20;

const byId = (id) => document.getElementById(id);
const user = location.hash.slice(1);
/** The answers that are shown, by id. */
const cards = new Map();
let tokens = 0;

window.addEventListener('hashchange', () => location.reload());
byId('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  location.hash = byId('name').value;
});
byId('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  tried(ask);
});
if (user) await tried(start);
else byId('sign-in').hidden = false;

async function start() {
  const streams = await signIn();
  byId('who').textContent = `Signed in as ${user}`;
  byId('chat').hidden = false;
  follow(streams, {
    position: `last=${ANSWERS_MAX}`,
    onMessage: ({ id, question }) => showAnswer(id, question, `${streams}/${id}`),
    onState: showState,
    renew: signIn,
  });
}

/** Gets a token for Encke, as a cookie, and returns the address of the user's streams. */
async function signIn() {
  const response = await fetch(`users/${encodeURIComponent(user)}`, { method: 'POST' });
  if (!response.ok) throw new Error(`${user} cannot sign in: ${await response.text()}`);
  return response.text();
}

async function ask() {
  const field = byId('question');
  const question = field.value;
  // At once: the user may type the next one before this one is taken.
  field.value = '';
  try {
    const response = await fetch('answers', { method: 'POST', body: question });
    if (!response.ok) throw new Error(`the question was not taken: ${await response.text()}`);
  } catch (error) {
    field.value ||= question;
    throw error;
  }
}

/** Closes the stream of an answer. The server of the chat learns it from Encke. */
async function stop(url) {
  const headers = { 'Stream-Closed': 'true', 'Encke-End-Reason': 'stopped' };
  const response = await fetch(url, { method: 'POST', credentials: 'include', headers });
  // 409: it has ended meanwhile.
  if (!response.ok && response.status !== 409) throw new Error(`the answer was not stopped: ${await response.text()}`);
}

/** Adds an answer and follows it to its end. An answer can be in the list twice, if the server of the chat was cut off. */
function showAnswer(id, question, url) {
  if (cards.has(id)) return;
  const card = byId('answer').content.cloneNode(true).firstElementChild;
  const part = (name) => card.querySelector(name);
  card.dataset.id = id;
  part('h2').textContent = question;
  part('button').addEventListener('click', () => tried(() => stop(url)));
  cards.set(id, card);
  byId('answers').prepend(card);
  byId('count').textContent = cards.size;

  let count = 0;
  follow(url, {
    onMessage(chunk) {
      if (chunk.type !== 'text-delta') return;
      part('p').append(chunk.delta);
      count += 1;
      tokens += 1;
      part('b').textContent = count;
      byId('tokens').textContent = tokens;
    },
    onEnd(reason) {
      card.dataset.state = reason;
      part('span').textContent = ENDS[reason];
    },
    onState: showState,
    renew: signIn,
  });
}

function showState(state) {
  document.body.dataset.state = state;
  byId('state').textContent = STATES[state];
}

/** Does something, and says what went wrong. */
async function tried(what) {
  byId('problem').textContent = '';
  await what().catch(({ message }) => (byId('problem').textContent = message));
}
