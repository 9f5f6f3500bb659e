// Elements, tables that keep their rows, dialogs, and numbers for people. Text becomes text nodes only: nothing that the server says is
// read as HTML.

/** Makes an element. Properties that are functions are handlers; children that are no nodes become text. */
export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === 'function') element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** A section with a heading. */
export const section = (title, ...children) => h('section', {}, h('h2', {}, title), ...children);

/** Sets the text of a node if it has changed, so that nothing is announced or selected anew. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/**
 * A table whose rows stay the same elements as long as their keys do, so that a refresh moves neither focus nor selection. `columns` have a
 * `title`, and `text(row)`, or `make(row)` for elements that are made once for a key; `row.current` is the present row for handlers.
 */
export class Table {
  #columns;
  #rows = new Map();
  #body = h('tbody');
  #empty;

  constructor(caption, columns, empty = 'none') {
    this.#columns = columns;
    const heads = columns.map(({ title, number, hidden }) =>
      h('th', { scope: 'col', class: number ? 'number' : undefined }, hidden ? h('span', { class: 'quiet' }, title) : title));
    this.#empty = h('p', { class: 'quiet' }, empty);
    this.caption = h('caption', {}, caption);
    const table = h('table', {}, this.caption, h('thead', {}, h('tr', {}, heads)), this.#body);
    // It can be scrolled by keyboard.
    this.scroll = h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption }, table);
    this.element = h('div', {}, this.scroll, this.#empty);
  }

  /** Shows these rows, each with the key that `keyOf` says. */
  update(rows, keyOf) {
    const kept = new Map();
    for (const row of rows) {
      const key = keyOf(row);
      const known = this.#rows.get(key) ?? this.#make(row);
      known.current = row;
      for (const [place, { text }] of this.#columns.entries()) {
        if (text) setText(known.cells[place], String(text(row) ?? ''));
      }
      kept.set(key, known);
    }
    for (const [key, { element }] of this.#rows) if (!kept.has(key)) element.remove();
    let place = this.#body.firstElementChild;
    for (const { element } of kept.values()) {
      if (element === place) place = place.nextElementSibling;
      else this.#body.insertBefore(element, place);
    }
    this.#rows = kept;
    this.#empty.hidden = kept.size > 0;
    this.scroll.hidden = kept.size === 0;
  }

  #make(row) {
    const known = { current: row };
    known.cells = this.#columns.map(({ make, number, name }) =>
      h('td', { class: number ? 'number' : name ? 'name' : undefined }, make ? make(known) : []));
    known.element = h('tr', {}, known.cells);
    return known;
  }
}

/** A form field with its label. */
export const field = (label, input) => h('label', {}, label, input);

/** What a form holds, by the names of its fields. */
export const valuesOf = (form) => Object.fromEntries(new FormData(form));

/** A form in a line, whose `submit` is called with what it holds. */
export function lineForm(submit, ...children) {
  return h('form', {
    class: 'line',
    submit: (event) => {
      event.preventDefault();
      submit(valuesOf(event.target));
    },
  }, ...children);
}

/** The buttons of a list in pages. `after` is where the present page begins; `turn` says where the next one does. */
export class Pager {
  after = '';
  #next = '';
  #first;
  #more;
  element;

  constructor(refresh) {
    const move = (to) => {
      this.after = to;
      refresh();
    };
    this.#first = h('button', { type: 'button', click: () => move('') }, 'First page');
    this.#more = h('button', { type: 'button', click: () => move(this.#next) }, 'Next page');
    this.element = h('div', { class: 'actions' }, this.#first, this.#more);
  }

  /** Shows whether a page follows. */
  turn(next = '') {
    this.#next = next;
    this.#first.hidden = !this.after;
    this.#more.hidden = !next;
  }
}

/** Asks in a dialog. Returns what its form holds if it was confirmed, and otherwise null. */
export function ask(title, { text = '', fields = [], confirm = 'OK', danger = false } = {}) {
  const dialog = document.getElementById('dialog');
  return new Promise((resolve) => {
    let answer = null;
    const form = h('form', {
      submit: (event) => {
        event.preventDefault();
        answer = valuesOf(form);
        dialog.close();
      },
    },
    h('h2', { id: 'dialog-title' }, title),
    text ? h('p', {}, text) : null,
    fields,
    h('div', { class: 'actions' },
      h('button', { class: danger ? 'danger' : 'main', type: 'submit' }, confirm),
      h('button', { type: 'button', click: () => dialog.close() }, 'Cancel')));
    dialog.replaceChildren(form);
    dialog.addEventListener('close', () => {
      dialog.replaceChildren();
      resolve(answer);
    }, { once: true });
    dialog.showModal();
  });
}

/** Says for a few seconds that something was done. */
export function say(text) {
  const done = document.getElementById('done');
  done.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (done.textContent = ''), 6000);
}

const COUNT = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });
const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** A number with separators; a dash if it is not known. */
export const count = (value) => (value === null || value === undefined ? '–' : COUNT.format(value));

/** A number of bytes. */
export function bytes(value) {
  if (value === null || value === undefined) return '–';
  const power = Math.min(value < 1 ? 0 : Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  return `${COUNT.format(value / 1024 ** power)} ${UNITS[power]}`;
}

/** A time in seconds. */
export function seconds(value) {
  if (value === null || value === undefined) return '–';
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${COUNT.format(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}

const TIME = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });

/** The time of day of a moment in milliseconds since 1970. */
export const clock = (ms) => TIME.format(new Date(ms));
