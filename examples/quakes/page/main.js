// The page: events go from the stream to the map, the list and the counters.

import { follow } from './follow.js';
import { QuakeList } from './list.js';
import { QuakeMap } from './map.js';
import { Timeline } from './timeline.js';
import { clockText, dayText, DEPTHS, magnitudeText } from './words.js';

const STATES = {
  connecting: 'connecting',
  'catching-up': 'catching up',
  live: 'live',
  away: 'server away, trying again',
  missing: 'waiting for the first event',
  ended: 'the stream has ended',
};

const byId = (id) => document.getElementById(id);
const url = new URLSearchParams(location.search).get('stream') ?? `http://${location.hostname}:4437/v1/stream/quakes`;
const map = new QuakeMap(byId('map'));
const list = new QuakeList(byId('list'));
const timeline = new Timeline(byId('timeline'), byId('days'));

/** Ids of all events shown: an event that came twice would be counted as a repeat, and not be drawn again. */
const seen = new Set();
let repeats = 0;
let strongest;
let connections = 0;
let live = false;

byId('source').textContent = url;
for (const { name, label } of DEPTHS) byId('depths').append(legend(name, label));
fetch('data/world.json').then((answer) => answer.json()).then((world) => map.drawLand(world), console.warn);
await follow({ url, onBatch: show, onState: showState });

function show(items, offset) {
  const events = items.filter(({ id }) => !seen.has(id));
  repeats += items.length - events.length;
  for (const { id } of events) seen.add(id);
  map.add(events, live);
  list.add(events, live);
  timeline.add(events);
  for (const event of events) if (!(event.magnitude <= strongest?.magnitude)) strongest = event;

  byId('count').textContent = seen.size.toLocaleString('en');
  byId('repeats').textContent = repeats;
  // Without leading zeros, so that it fits a phone; the tooltip has all of it.
  byId('offset').textContent = offset.replace(/\b0+(?=[0-9a-f])|(?<=_)0+(?=[0-9a-f])/g, '');
  byId('offset').title = offset;
  const last = events.at(-1);
  if (!last) return;
  byId('empty').hidden = true;
  byId('clock').textContent = clockText(last.time);
  byId('day').textContent = `${dayText(new Date(last.time))} ${last.time.slice(0, 4)}`;
  byId('strongest').textContent = magnitudeText(strongest.magnitude);
  byId('strongest-place').textContent = strongest.place;
}

function showState(state) {
  live = state === 'live';
  if (live) connections += 1;
  document.body.dataset.state = state;
  byId('state').textContent = STATES[state];
  byId('resumed').textContent = Math.max(0, connections - 1);
}

function legend(className, label) {
  const item = document.createElement('li');
  item.className = className;
  item.textContent = label;
  return item;
}
