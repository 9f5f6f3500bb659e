// The earthquakes: one week of them as the United States Geological Survey published it, carried by `vega-datasets`.

import { readFileSync } from 'node:fs';

const GEOJSON = new URL('./node_modules/vega-datasets/data/earthquakes.json', import.meta.url);

/** All events of the week, oldest first, each as the stream carries it. */
export function quakes() {
  const { features } = JSON.parse(readFileSync(GEOJSON, 'utf8'));
  const inOrder = features.toSorted((a, b) => a.properties.time - b.properties.time);
  return inOrder.map(({ id, properties, geometry }) => {
    const [longitude, latitude, depth_km] = geometry.coordinates;
    return {
      id,
      time: new Date(properties.time).toISOString(),
      magnitude: properties.mag,
      place: properties.place,
      kind: properties.type,
      longitude,
      latitude,
      depth_km,
    };
  });
}
