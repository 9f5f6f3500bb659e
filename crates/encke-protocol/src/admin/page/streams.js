// Streams: the list by prefix, the largest, and one of them with its metadata, its live records, and what can be done to it by hand.

import { Refused, followLines, get, pathOf, send, withQuery } from './api.js';
import { Pager, Table, ask, bytes, clock, count, field, h, lineForm, say, seconds, section, setText } from './elements.js';

const ROOT = '/v1/stream/';
/** Records of the live tail that are shown. */
const TAIL_MAX = 200;
/** Characters of a record that are shown. */
const RECORD_CHARS_MAX = 2000;

const ORDERS = { name: 'name', bytes: 'bytes appended', messages: 'messages', subscribers: 'subscribers' };

function begin(given, page) {
  if (given.name !== undefined) return beginOne(given.name, page);
  const prefix = given.prefix ?? '';
  const sort = ORDERS[given.sort] ? given.sort : 'name';
  const pages = new Pager(() => page.refresh());
  const list = new Table(`Streams by ${ORDERS[sort]}`, [
    {
      title: 'Name',
      name: true,
      make: (row) => h('a', { href: `#${withQuery('streams', { name: row.current.name })}` }, row.current.name),
    },
    { title: 'Type', text: (one) => one.contentType },
    { title: 'Messages', text: (one) => count(one.messages), number: true },
    { title: 'Appended', text: (one) => bytes(one.appendedBytes), number: true },
    { title: 'Subscribers', text: (one) => count(one.subscribers), number: true },
    { title: 'Too slow', text: (one) => count(one.behind), number: true },
    { title: 'Longest lag', text: (one) => seconds(one.behind ? one.lagSeconds : null), number: true },
    { title: 'State', text: (one) => (one.closed ? 'closed' : 'open') },
    { title: 'Owner', text: (one) => one.owner ?? '–' },
  ], 'No stream has a name that begins so.');
  const form = lineForm((values) => page.go('streams', Object.fromEntries(Object.entries(values).filter(([, value]) => value))),
    field('Name begins with', h('input', { name: 'prefix', value: prefix, autocomplete: 'off' })),
    field('Order', h('select', { name: 'sort' },
      Object.entries(ORDERS).map(([value, label]) => h('option', { value, selected: value === sort }, label)))),
    h('button', { type: 'submit', class: 'main' }, 'Show'));
  const note = h('p', { class: 'quiet' });
  return {
    element: h('div', {},
      section('Streams', form, list.element, note, pages.element),
      section('Publish', publishForm('', page))),
    everySeconds: 5,
    async refresh(signal) {
      const answer = await get(withQuery('/v1/admin/streams', { prefix, sort, after: pages.after, limit: 100 }), signal);
      list.update(answer.streams, (one) => one.name);
      pages.turn(answer.next);
      const shown = `${count(answer.streams.length)} shown`;
      const age = answer.ageSeconds > 5 ? `, as of ${seconds(answer.ageSeconds)} ago` : '';
      const all = answer.total === undefined ? '' : ` of ${count(answer.total)}${answer.complete ? '' : ' that were looked at; there are more'}`;
      setText(note, answer.next ? `${shown}; more follow.` : `${shown}${all}${age}.`);
    },
  };
}

/** A form that appends to a stream, and creates it if it does not exist. */
function publishForm(name, page) {
  const publish = async ({ stream, type, content }) => {
    const path = pathOf(ROOT, stream);
    const append = () => send(path, { method: 'POST', headers: { 'Content-Type': type }, body: content });
    try {
      await append();
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      const text = `There is no stream ${stream}.`;
      if (!(await ask('Create the stream?', { text, confirm: 'Create it' }))) return;
      await send(path, { method: 'PUT', headers: { 'Content-Type': type } });
      await append();
    }
    say(`Published to ${stream}.`);
  };
  return h('form', {
    submit: (event) => {
      event.preventDefault();
      page.act(() => publish(Object.fromEntries(new FormData(event.target))));
    },
  },
  h('div', { class: 'line' },
    name
      ? h('input', { type: 'hidden', name: 'stream', value: name })
      : field('Stream', h('input', { name: 'stream', required: true, autocomplete: 'off' })),
    field('Content type', h('input', { name: 'type', value: 'application/json', required: true, list: 'types', autocomplete: 'off' })),
    h('datalist', { id: 'types' }, ['application/json', 'text/plain'].map((type) => h('option', { value: type })))),
  field('Content', h('textarea', { name: 'content', required: true, spellcheck: 'false' })),
  h('div', { class: 'actions' }, h('button', { type: 'submit', class: 'main' }, 'Publish')));
}

function beginOne(name, page) {
  const path = pathOf(ROOT, name);
  const facts = h('dl', { class: 'facts' });
  const metadata = h('pre');
  const tail = new Tail(path, page);
  const remove = async () => {
    const text = `All records of ${name} are removed, and its subscribers end. This cannot be undone.`;
    if (!(await ask('Delete this stream?', { text, confirm: 'Delete it', danger: true }))) return;
    tail.stop();
    try {
      await send(path, { method: 'DELETE' });
    } catch (error) {
      return page.problem(error);
    }
    say(`${name} is deleted.`);
    page.go('streams');
  };
  const show = (entries) =>
    facts.replaceChildren(...entries.flatMap(([title, value]) => [h('dt', {}, title), h('dd', {}, value)]));
  return {
    element: h('div', {},
      section(name, facts, h('h3', {}, 'Metadata'), metadata, h('div', { class: 'actions' },
        h('a', { href: `#${withQuery('connections', { stream: name })}` }, 'Who is connected to it'),
        h('button', { type: 'button', class: 'danger', click: remove }, 'Delete…'))),
      section('Live records', tail.element),
      section('Publish', publishForm(name, page))),
    everySeconds: 5,
    pause: () => tail.pause(),
    resume: () => tail.resume(),
    end: () => tail.stop(),
    async refresh(signal) {
      const known = await get(withQuery('/v1/admin/streams', { prefix: name, limit: 1 }), signal);
      const one = known.streams.find((stream) => stream.name === name);
      if (!one) throw new Refused(404, 'not_found', `There is no stream ${name}.`);
      const entries = [
        ['Content type', one.contentType],
        ['State', one.closed ? 'closed' : 'open'],
        ['Messages', count(one.messages)],
        ['Appended', bytes(one.appendedBytes)],
        ['Subscribers', `${count(one.subscribers)}, of which ${count(one.behind)} are too slow`],
        ['Longest lag', one.behind ? `${seconds(one.lagSeconds)}, ${bytes(one.lagBytes)}` : '–'],
        ['Owner', one.owner ?? 'none'],
        ['End', one.nextOffset],
      ];
      // What is stored needs the grants of any reader.
      try {
        const { headers } = await send(path, { method: 'HEAD', signal });
        for (const [field, value] of headers) {
          if (field.startsWith('encke-') || field.startsWith('stream-ttl') || field.startsWith('stream-expires')) entries.push([field, value]);
        }
        const found = await get(withQuery('/v1/stream', { prefix: name, limit: 1 }), signal);
        const stored = found.streams.find((stream) => stream.name === name)?.metadata;
        setText(metadata, stored === undefined ? 'none' : JSON.stringify(stored, null, 2));
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        setText(metadata, `not shown: ${error.message}`);
      }
      show(entries);
    },
  };
}

/** The records of a stream as they come. */
class Tail {
  #path;
  #page;
  #list = h('ol', { class: 'records' });
  #state = h('p', { class: 'quiet' }, 'Not followed.');
  #button = h('button', { type: 'button', class: 'main', click: () => (this.#wanted ? this.stop() : this.#begin()) }, 'Follow');
  #following;
  #wanted = false;
  #offset = '';

  constructor(path, page) {
    this.#path = path;
    this.#page = page;
    this.element = h('div', {},
      h('div', { class: 'actions' }, this.#button),
      this.#state,
      h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Records' }, this.#list));
  }

  stop() {
    this.#wanted = false;
    this.pause();
    setText(this.#button, 'Follow');
    setText(this.#state, 'Not followed.');
  }

  pause() {
    this.#following?.abort();
    this.#following = undefined;
  }

  resume() {
    if (this.#wanted && !this.#following) this.#follow();
  }

  #begin() {
    this.#wanted = true;
    this.#offset = '';
    this.#list.replaceChildren();
    setText(this.#button, 'Stop');
    this.#follow();
  }

  async #follow() {
    const mine = new AbortController();
    this.#following = mine;
    setText(this.#state, 'Followed: the last 20 records and all new ones.');
    const from = this.#offset ? { offset: this.#offset } : { last: 20 };
    try {
      const path = withQuery(this.#path, { ...from, live: 'true', times: 'true' });
      await followLines(path, (line) => this.#take(line), mine.signal);
      if (this.#following === mine) this.stop();
    } catch (error) {
      if (mine.signal.aborted) return;
      this.stop();
      this.#page.problem(error);
    }
  }

  #take({ offset, timeMs, data, base64, disconnect }) {
    if (disconnect) setText(this.#state, `Ended: ${disconnect.why}`);
    if (offset === undefined) return;
    this.#offset = offset;
    const text = base64 !== undefined ? `base64: ${base64}` : typeof data === 'string' ? data : JSON.stringify(data);
    const cut = text.length > RECORD_CHARS_MAX ? `${text.slice(0, RECORD_CHARS_MAX)}… (${count(text.length)} characters)` : text;
    this.#list.prepend(h('li', {}, h('span', { class: 'quiet' }, `${clock(timeMs)} ${offset}`), h('pre', {}, cut)));
    while (this.#list.childElementCount > TAIL_MAX) this.#list.lastElementChild.remove();
  }
}

/** Streams, and one of them. */
export const streams = { title: 'Streams', begin };
