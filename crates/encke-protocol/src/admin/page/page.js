// The page: sections by the part of the URL behind `#`, one refresh at a time, and none while the tab is hidden.

import { Refused, get, hasToken, setToken } from './api.js';
import { ask, field, h, say, setText } from './elements.js';
import { access } from './access.js';
import { connections } from './connections.js';
import { pools } from './pools.js';
import { configuration, machine, server } from './server.js';
import { streams } from './streams.js';

/**
 * The sections. `begin(parameters, page)` makes one, and returns `element`, `refresh(signal)`, `everySeconds` (0 for once) and, if it has
 * something to end, `end()`.
 */
const SECTIONS = { server, connections, streams, pools, access, configuration, machine };

/** Seconds between two looks at whether the server is ready, on sections that do not say it. */
const HEALTH_SECONDS = 15;

const at = (id) => document.getElementById(id);
let current;
let refreshing;
let timer;

/** What sections do with the page. */
const page = {
  /** Goes to a section. */
  go(name, parameters = {}) {
    const query = new URLSearchParams(parameters).toString();
    location.hash = query ? `${name}?${query}` : name;
  },
  /** Refreshes the present section now. */
  refresh: () => refresh(),
  /** Does something that the user wants, and says how it went. */
  async act(what, done) {
    try {
      await what();
      showProblem();
      if (done) say(done);
      await refresh();
      return true;
    } catch (error) {
      showProblem(error);
      return false;
    }
  },
  /** Shows what went wrong, or nothing. */
  problem: (error) => showProblem(error),
  /** Shows whether the server is ready. */
  health: (overview) => showHealth(overview),
};

function showProblem(error) {
  const problem = at('problem');
  problem.hidden = !error;
  if (!error) return setText(problem, '');
  let text = error instanceof Refused ? error.message : `The server does not answer (${error.message}).`;
  if ([401, 403, 404].includes(error.status) && !hasToken()) {
    text += ' If that needs a grant: the button Token takes a token that has it.';
  }
  setText(problem, text);
}

function showHealth({ unready, version } = {}) {
  const health = at('health');
  health.className = unready ? 'bad' : 'good';
  setText(health, unready ? `not ready: ${unready}` : 'ready');
  if (version) setText(at('version'), version);
}

async function refresh() {
  clearTimeout(timer);
  refreshing?.abort();
  if (document.hidden || !current) return;
  const mine = new AbortController();
  refreshing = mine;
  let { everySeconds } = current;
  try {
    await current.refresh(mine.signal);
    if (!current.showsHealth) showHealth(await get('/v1/admin/overview', mine.signal));
    if (mine.signal.aborted) return;
    if (at('problem').dataset.refresh) showProblem();
    delete at('problem').dataset.refresh;
  } catch (error) {
    if (mine.signal.aborted) return;
    showProblem(error);
    at('problem').dataset.refresh = 'true';
    everySeconds ||= HEALTH_SECONDS;
  }
  timer = setTimeout(refresh, (everySeconds || HEALTH_SECONDS) * 1000);
}

function route() {
  const [name, query = ''] = location.hash.slice(1).split('?');
  const section = SECTIONS[name] ? name : 'server';
  current?.end?.();
  showProblem();
  const { title, begin } = SECTIONS[section];
  document.title = `${title} – Encke`;
  setText(at('title'), title);
  for (const link of at('sections').querySelectorAll('a')) {
    if (link.dataset.section === section) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  current = begin(Object.fromEntries(new URLSearchParams(query)), page);
  at('view').replaceChildren(current.element);
  refresh();
}

at('sections').append(...Object.entries(SECTIONS).map(([name, { title }]) =>
  h('li', {}, h('a', { href: `#${name}`, 'data-section': name }, title))));
at('token').addEventListener('click', async () => {
  const input = h('input', { name: 'token', type: 'password', autocomplete: 'off', spellcheck: 'false' });
  const text = 'Requests of this page carry it until the page is closed or reloaded. An empty field forgets it.';
  const answer = await ask('Use a token or an API key', { text, fields: [field('Token', input)], confirm: 'Use it' });
  if (!answer) return;
  setToken(answer.token);
  setText(at('token'), hasToken() ? 'Token in use' : 'Token');
  route();
});
addEventListener('hashchange', () => {
  // The link to the content is none to a section.
  if (location.hash === '#content') return;
  route();
  at('content').focus({ preventScroll: true });
});
document.addEventListener('visibilitychange', () => {
  if (document.hidden) {
    clearTimeout(timer);
    refreshing?.abort();
    current?.pause?.();
  } else {
    current?.resume?.();
    refresh();
  }
});
route();
