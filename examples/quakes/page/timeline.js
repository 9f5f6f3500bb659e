// The week as a row of bars: how many events there were in each hour. One unit of the drawing is an hour across and an
// event up; the browser stretches it to the width and height there is.

import { dayText } from './words.js';

const SVG = 'http://www.w3.org/2000/svg';
const HOUR_MS = 3_600_000;
const DAY_HOURS = 24;
const DAYS = 8;
/** Fewer events than this in the busiest hour don't fill the height. */
const EVENTS_MIN = 12;

export class Timeline {
  #svg;
  #labels;
  #start_ms;
  #highest = EVENTS_MIN;
  /** The bar of each hour that had an event. */
  #bars = new Map();

  constructor(svg, labels) {
    this.#svg = svg;
    this.#labels = labels;
    this.#scale();
  }

  /** Counts the events in. The first one sets the day on which the row begins; what lies beyond its end is left out. */
  add(events) {
    for (const { time } of events) {
      const time_ms = Date.parse(time);
      if (this.#start_ms === undefined) this.#begin(time_ms);
      const hour = Math.floor((time_ms - this.#start_ms) / HOUR_MS);
      if (hour >= 0 && hour < DAYS * DAY_HOURS) this.#raise(hour);
    }
    this.#scale();
  }

  #begin(time_ms) {
    this.#start_ms = new Date(time_ms).setUTCHours(0, 0, 0, 0);
    for (let day = 0; day < DAYS; day++) {
      const date = new Date(this.#start_ms + day * DAY_HOURS * HOUR_MS);
      const newMonth = day === 0 || date.getUTCDate() === 1;
      const label = document.createElement('li');
      label.textContent = newMonth ? dayText(date) : date.getUTCDate();
      this.#labels.append(label);
    }
  }

  #raise(hour) {
    const { rect, count } = this.#bars.get(hour) ?? { rect: this.#bar(hour), count: 0 };
    this.#bars.set(hour, { rect, count: count + 1 });
    rect.setAttribute('y', -(count + 1));
    rect.setAttribute('height', count + 1);
    this.#highest = Math.max(this.#highest, count + 1);
  }

  #bar(hour) {
    const rect = document.createElementNS(SVG, 'rect');
    rect.setAttribute('x', hour + 0.1);
    rect.setAttribute('width', 0.8);
    return this.#svg.appendChild(rect);
  }

  #scale() {
    this.#svg.setAttribute('viewBox', `0 ${-this.#highest} ${DAYS * DAY_HOURS} ${this.#highest}`);
  }
}
