// Access control: why requests were refused, and what a credential allows.

import { post, get, withQuery } from './api.js';
import { Table, ask, clock, count, field, h, section, setText } from './elements.js';

function begin(_, page) {
  const form = h('form', {
    submit: (event) => {
      event.preventDefault();
      page.act(() => explain(Object.fromEntries(new FormData(event.target))));
    },
  },
  h('div', { class: 'line' },
    field('Token or API key', h('input', { name: 'token', type: 'password', required: true, autocomplete: 'off', spellcheck: 'false' })),
    field('Method', h('select', { name: 'method' }, ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'].map((name) => h('option', {}, name)))),
    field('Path', h('input', { name: 'path', required: true, autocomplete: 'off', placeholder: '/v1/stream/chat' })),
    h('button', { type: 'submit', class: 'main' }, 'Explain')));
  const verdict = h('p', { role: 'status' });
  const text = h('pre');
  const explain = async (asked) => {
    const answer = await (await post('/v1/admin/explain', asked)).json();
    verdict.className = answer.allowed ? 'good' : 'bad';
    setText(verdict, answer.allowed ? 'The request would be allowed.' : 'The request would be refused.');
    setText(text, answer.text);
  };
  const refusals = new Table('The last requests that were refused, the newest first', [
    { title: 'At', text: (one) => clock(one.at) },
    { title: 'Reason', text: (one) => one.reason },
    { title: 'Status', text: (one) => one.status, number: true },
    { title: 'Caller', text: (one) => one.caller ?? 'not known' },
    { title: 'Client', text: (one) => one.client },
    { title: 'Method', text: (one) => one.method },
    { title: 'Path', text: (one) => one.path, name: true },
    { title: 'Times', text: (one) => count(one.count), number: true },
    {
      title: 'Why',
      make: (row) => h('button', {
        type: 'button',
        'aria-label': `Explain ${row.current.method} ${row.current.path}`,
        click: () => take(row.current),
      }, 'Explain'),
    },
  ], 'Nothing was refused since the start.');
  const take = ({ method, path }) => {
    form.elements.method.value = method;
    form.elements.path.value = path;
    form.elements.token.focus();
  };
  const revoke = async () => {
    const kind = h('select', { name: 'kind' }, [['sub', 'the subject of tokens'], ['jti', 'the id of a token'], ['key', 'the name of a key']]
      .map(([value, label]) => h('option', { value }, label)));
    const fields = [field('By', kind), field('Name', h('input', { name: 'name', required: true, autocomplete: 'off' }))];
    const answer = await ask('Revoke credentials?', { fields, confirm: 'Revoke them', danger: true });
    if (answer) await page.act(() => post('/v1/admin/revoke', { [answer.kind]: answer.name }), 'They are revoked.');
  };
  return {
    element: h('div', {},
      section('Why was this refused?', refusals.element),
      section('What does this credential allow?', form, verdict, text),
      section('End credentials', h('p', {}, 'Tokens and keys that are revoked are refused at once, and what they hold open ends.'),
        h('div', { class: 'actions' }, h('button', { type: 'button', class: 'danger', click: revoke }, 'Revoke…')))),
    everySeconds: 5,
    async refresh(signal) {
      const answer = await get(withQuery('/v1/admin/refusals', { limit: 100 }), signal);
      refusals.update(answer.refusals, (one) => `${one.at} ${one.client} ${one.method} ${one.path} ${one.reason}`);
    },
  };
}

/** Refusals, and what credentials allow. */
export const access = { title: 'Access', begin };
