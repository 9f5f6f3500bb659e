// Who is connected: the largest groups, a list by address, caller and stream, the slow ones, and how to close one.

import { get, post, withQuery } from './api.js';
import { Pager, Table, ask, bytes, count, field, h, lineForm, seconds, section, setText } from './elements.js';

const GROUPS = { address: 'address', caller: 'caller', stream: 'stream' };

function begin(given, page) {
  const filter = {
    address: given.address ?? '',
    caller: given.caller ?? '',
    stream: given.stream ?? '',
    slow: given.slow === 'true',
  };
  let by = GROUPS[given.by] ?? 'address';
  const pages = new Pager(() => page.refresh());

  const groups = new Table('The largest groups of connections', [
    {
      title: 'Name',
      name: true,
      // Patterns and callers whose name is not known are no filter.
      make: (row) => h('button', { type: 'button', class: 'link', click: () => narrow(row.current) }, row.current.name),
    },
    { title: 'Kind', text: (one) => (one.issuer ? `caller, ${one.issuer}` : one.kind) },
    { title: 'Connections', text: (one) => count(one.connections), number: true },
    { title: 'Too slow', text: (one) => count(one.behind), number: true },
    { title: 'Longest lag', text: (one) => seconds(one.behind ? one.lagSeconds : null), number: true },
  ], 'There are none of this kind.');
  const groupNote = h('p', { class: 'quiet' });
  const kind = h('select', { name: 'by' }, Object.values(GROUPS).map((name) => h('option', { value: name, selected: name === by }, name)));
  kind.addEventListener('change', () => {
    by = kind.value;
    page.refresh();
  });

  const list = new Table('Connections, and subscriptions of those that have several', [
    { title: 'Client', text: (one) => one.client, name: true },
    { title: 'Caller', text: (one) => one.caller?.name ?? '–' },
    { title: 'Streams', text: streamsOf, name: true },
    { title: 'Doing', text: (one) => one.doing.replaceAll('_', ' ') },
    { title: 'Speaks', text: (one) => one.speaks + (one.tls ? ', TLS' : '') + (one.operator ? ', operator' : '') },
    { title: 'Behind for', text: (one) => seconds(one.lagSeconds), number: true },
    { title: 'Lacks', text: (one) => bytes(one.lagBytes), number: true },
    { title: 'Quiet for', text: (one) => seconds(one.quietSeconds), number: true },
    { title: 'Requests', text: (one) => count(one.requests), number: true },
    { title: 'Holds', text: (one) => bytes(one.heldBytes), number: true },
    {
      title: 'Close',
      make: (row) => h('button', {
        type: 'button',
        class: 'danger',
        'aria-label': `Close the connection ${row.current.id} of ${row.current.client}`,
        click: () => close(row.current),
      }, 'Close'),
    },
  ], 'No connection is like that.');

  const narrow = (group) => {
    if (group.kind !== 'pattern') page.go('connections', { [group.kind]: group.name, by });
  };
  const close = async (one) => {
    const text = `${one.client}, ${one.speaks}, ${one.doing.replaceAll('_', ' ')}. Most clients connect again by themselves.`;
    const answer = await ask('Close this connection?', { text, confirm: 'Close it', danger: true });
    if (answer) await page.act(() => post('/v1/admin/connections/close', { connection: one.of ?? one.id }), 'The connection is closed.');
  };
  const input = (name, label) => field(label, h('input', { name, value: filter[name], autocomplete: 'off' }));
  const form = lineForm((values) => {
    const set = Object.entries({ ...values, slow: values.slow ? 'true' : '', by }).filter(([, value]) => value);
    const parameters = Object.fromEntries(set);
    const same = new URLSearchParams(parameters).toString() === location.hash.split('?')[1];
    pages.after = '';
    if (same) page.refresh();
    else page.go('connections', parameters);
  },
  input('stream', 'Connected to the stream'),
  input('address', 'From the address'),
  input('caller', 'By the caller'),
  h('label', { class: 'check' }, h('input', { type: 'checkbox', name: 'slow', checked: filter.slow }), 'too slow'),
  h('button', { type: 'submit', class: 'main' }, 'Show'));
  const note = h('p', { class: 'quiet' });

  return {
    element: h('div', {},
      section('Who is connected', form, list.element, note, pages.element),
      section('Groups', h('form', { class: 'line' }, field('By', kind)), groups.element, groupNote)),
    everySeconds: 5,
    async refresh(signal) {
      const answer = await get(withQuery('/v1/admin/connections', { ...filter, after: pages.after, limit: 100 }), signal);
      list.update(answer.connections, (one) => one.id);
      pages.turn(answer.next);
      setText(note, answer.next ? 'More follow on the next page.' : `${count(answer.connections.length)} on this page, the last one.`);
      const found = await get(withQuery('/v1/admin/connections/groups', { by, limit: 20 }), signal);
      groups.update(found.groups, (one) => `${one.kind} ${one.issuer ?? ''} ${one.name}`);
      const age = found.ageSeconds > 5 ? `, as of ${seconds(found.ageSeconds)} ago` : '';
      setText(groupNote, `${count(found.total)} in all${age}.${found.complete ? '' : ' There are more connections than were looked at.'}`);
    },
  };
}

function streamsOf({ streams, streamsTotal }) {
  if (!streamsTotal) return '–';
  const names = streams.map((name) => name ?? 'a stream that has ended').join(', ');
  return streamsTotal > streams.length ? `${names} and ${streamsTotal - streams.length} more` : names;
}

/** Who is connected. */
export const connections = { title: 'Connections', begin };
