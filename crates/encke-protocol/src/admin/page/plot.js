// Plots of the last hour as SVG: at most two lines, the last and the largest value as text, and the values at the pointer.

import { clock, h, setText } from './elements.js';

const SVG = 'http://www.w3.org/2000/svg';
const WIDTH = 720;
const HEIGHT = 100;

function svg(name, attributes) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** A plot of some columns of the history. `format` writes a value. */
export class Plot {
  #series;
  #format;
  #paths;
  #cursor = svg('path', { class: 'cursor', d: '' });
  #svg = svg('svg', { class: 'plot', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img' });
  #note = h('span', { class: 'quiet' });
  #history = { at: [] };
  /** Where the pointer is, in pixels of the window, while it is over the plot. */
  #pointer;

  constructor(title, series, format) {
    this.#series = series;
    this.#format = format;
    this.#paths = series.map((_, place) => svg('path', { class: `series-${place}`, d: '' }));
    this.#svg.append(...this.#paths, this.#cursor);
    this.title = title;
    const keys = series.length < 2 ? [] : series.map(({ label }, place) => h('span', { class: `key-${place}` }, label));
    this.element = h('figure', {}, h('figcaption', {}, h('strong', {}, title), ...keys, this.#note), this.#svg);
    this.#svg.addEventListener('pointermove', ({ clientX }) => {
      this.#pointer = clientX;
      this.#point();
    });
    this.#svg.addEventListener('pointerleave', () => {
      this.#pointer = undefined;
      this.#summarise();
    });
  }

  /** Draws the history anew. */
  update(history) {
    this.#history = history;
    const { at } = history;
    const all = this.#series.map(({ column }) => history[column]);
    const top = Math.max(...all.flat(), 0) || 1;
    const first = at[0] ?? 0;
    const span = Math.max((at.at(-1) ?? 0) - first, 1);
    for (const [place, values] of all.entries()) {
      const points = values.map((value, index) => {
        const x = ((at[index] - first) / span) * WIDTH;
        return `${x.toFixed(1)} ${(HEIGHT - 2 - (value / top) * (HEIGHT - 6)).toFixed(1)}`;
      });
      this.#paths[place].setAttribute('d', points.length > 1 ? `M${points.join('L')}` : '');
    }
    this.#summarise();
    if (this.#pointer !== undefined) this.#point();
  }

  #summarise() {
    this.#cursor.setAttribute('d', '');
    const parts = this.#series.map(({ label, column }) => {
      const values = this.#history[column] ?? [];
      if (!values.length) return 'nothing yet: a sample comes every 10 s';
      const name = this.#series.length < 2 ? '' : `${label} `;
      return `${name}${this.#format(values.at(-1))}, at most ${this.#format(Math.max(...values))}`;
    });
    const text = [...new Set(parts)].join('; ');
    setText(this.#note, text);
    this.#svg.setAttribute('aria-label', `${this.title}: ${text}`);
  }

  /** Shows the values at the pointer. */
  #point() {
    const { at } = this.#history;
    if (at.length < 2) return;
    const box = this.#svg.getBoundingClientRect();
    const share = Math.min(Math.max((this.#pointer - box.left) / box.width, 0), 1);
    const wanted = at[0] + share * (at.at(-1) - at[0]);
    let index = at.findIndex((ms) => ms >= wanted);
    if (index < 0) index = at.length - 1;
    const x = (share * WIDTH).toFixed(1);
    this.#cursor.setAttribute('d', `M${x} 0V${HEIGHT}`);
    const values = this.#series.map(({ label, column }) => `${label} ${this.#format(this.#history[column][index])}`);
    setText(this.#note, `${clock(at[index])}: ${values.join(', ')}`);
  }
}
