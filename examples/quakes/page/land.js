// The outline of the land, out of a TopoJSON file: shared lines ("arcs") of whole-number steps, which rings refer to.

/** An SVG path of all land, one unit a degree, x to the east and y to the south. */
export function landPath(topology) {
  const arcs = topology.arcs.map((steps) => degrees(steps, topology.transform));
  const rings = polygons(topology.objects.land).flat();
  return rings.map((ring) => `M${ring.flatMap((index) => line(arcs, index)).join('L')}Z`).join('');
}

function polygons(geometry) {
  return geometry.type === 'Polygon' ? [geometry.arcs] : geometry.arcs;
}

/** The points of one arc; an index below zero means the arc `~index`, walked backwards. */
function line(arcs, index) {
  return index < 0 ? arcs[~index].toReversed() : arcs[index];
}

function degrees(steps, { scale, translate }) {
  let [x, y] = [0, 0];
  return steps.map(([dx, dy]) => {
    x += dx;
    y += dy;
    return `${(x * scale[0] + translate[0]).toFixed(2)} ${-(y * scale[1] + translate[1]).toFixed(2)}`;
  });
}
