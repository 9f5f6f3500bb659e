// The list of the latest events, newest first.

import { clockText, dayText, depthClass, depthText, magnitudeText } from './words.js';

const ROWS_MAX = 60;

export class QuakeList {
  #list;

  constructor(list) {
    this.#list = list;
  }

  /** Puts the events on top, the last of them first; `live` ones are marked for a moment. */
  add(events, live) {
    const rows = events.slice(-ROWS_MAX).map((event) => row(event, live));
    this.#list.prepend(...rows.reverse());
    while (this.#list.childElementCount > ROWS_MAX) this.#list.lastElementChild.remove();
  }
}

function row(event, live) {
  const item = node('li', live ? 'new' : '');
  item.dataset.id = event.id;
  const when = node('time', '', `${dayText(new Date(event.time))}, ${clockText(event.time)}`);
  when.dateTime = event.time;
  const details = node('small', 'details', ` · ${depthText(event.depth_km)}`);
  details.prepend(when);
  if (event.kind !== 'earthquake') details.append(` · ${event.kind}`);
  const size = event.magnitude >= 4.5 ? 'strong' : '';
  item.append(
    node('span', `magnitude ${depthClass(event.depth_km)} ${size}`, magnitudeText(event.magnitude)),
    node('span', 'place', event.place),
    details,
  );
  return item;
}

function node(name, className, text = '') {
  const made = document.createElement(name);
  if (className) made.className = className.trim();
  made.textContent = text;
  return made;
}
