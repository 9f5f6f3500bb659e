// The map: an equirectangular projection, one unit of the drawing a degree. It is cut in the Atlantic, at 30° West, so
// that the Pacific and the ring of volcanoes around it stand in the middle in one piece.

import { landPath } from './land.js';
import { depthClass, magnitudeText } from './words.js';

const SVG = 'http://www.w3.org/2000/svg';
const WEST = -30;
const NORTH = 88;
const SOUTH = -76;
const GRID_STEP = 30;
/** The oldest circles go when there are more; the page stays usable however long the stream is. */
const CIRCLES_MAX = 5_000;

/** Radius in degrees: each step of magnitude is 1.6 times as wide. */
export const radius = (magnitude) => 0.45 * 1.6 ** Math.max(0, magnitude);

export class QuakeMap {
  #svg;
  #quakes;
  #ripples;

  constructor(svg) {
    this.#svg = svg;
    svg.setAttribute('viewBox', `${WEST} ${-NORTH} 360 ${NORTH - SOUTH}`);
    svg.append(graticule());
    this.#ripples = svg.appendChild(element('g', { class: 'ripples' }));
    this.#quakes = svg.appendChild(element('g', { class: 'quakes', id: 'quakes' }));
  }

  /** Draws the land under everything else; the map works without it. */
  drawLand(topology) {
    const land = element('g', { class: 'land' });
    land.append(element('path', { id: 'land', d: landPath(topology) }), element('use', { href: '#land', x: 360 }));
    this.#svg.prepend(land);
  }

  /** Adds the events' circles; `live` ones arrive with a ripple. */
  add(events, live) {
    const circles = events.map((event) => {
      const at = { cx: event.longitude < WEST ? event.longitude + 360 : event.longitude, cy: -event.latitude };
      const depth = depthClass(event.depth_km);
      const circle = element('circle', { ...at, r: radius(event.magnitude).toFixed(2), class: `quake ${depth}` });
      circle.dataset.id = event.id;
      circle.append(element('title', {}, `${magnitudeText(event.magnitude)} · ${event.place}`));
      if (live) {
        circle.classList.add('new');
        this.#ripple(at, event.magnitude, depth);
      }
      return circle;
    });
    this.#quakes.append(...circles);
    while (this.#quakes.childElementCount > CIRCLES_MAX) this.#quakes.firstElementChild.remove();
  }

  #ripple(at, magnitude, depth) {
    if (matchMedia('(prefers-reduced-motion: reduce)').matches) return;
    const ring = element('circle', { ...at, r: (radius(magnitude) + 6).toFixed(2), class: `ripple ${depth}` });
    ring.addEventListener('animationend', () => ring.remove());
    this.#ripples.append(ring);
  }
}

function graticule() {
  const lines = [];
  for (let x = WEST + GRID_STEP; x < WEST + 360; x += GRID_STEP) lines.push(`M${x} ${-NORTH}V${-SOUTH}`);
  for (let y = -60; y <= 60; y += GRID_STEP) lines.push(`M${WEST} ${y}H${WEST + 360}`);
  return element('path', { class: 'graticule', d: lines.join('') });
}

function element(name, attributes, text = '') {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}
