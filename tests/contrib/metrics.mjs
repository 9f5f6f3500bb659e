// The metrics of the server: what docs/reference.md lists, which is made of the source, and what servers with some traffic have. The
// reference has those that show only when something has happened; servers have those of the process, and all their labels.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Encke } from '../web/encke.mjs';
import { Fleet } from '../web/fleet.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

/** By name, the kind of each metric, its labels, and the values of labels that servers have shown; data is written below `folder`. */
export async function knownMetrics(folder) {
  const metrics = new Map();
  addReference(metrics);
  const server = await Encke.start({ data: join(folder, 'alone') });
  await makeTraffic(server);
  addServer(metrics, (await server.request('GET', '/metrics')).body);
  await server.stop();
  const fleet = await Fleet.start({ folder });
  for (const node of fleet.nodes) addServer(metrics, (await node.request('GET', '/metrics')).body);
  await fleet.stop();
  return metrics;
}

/** The rows of the section "Metrics". */
function addReference(metrics) {
  const [, section] = readFileSync(join(ROOT, 'docs/reference.md'), 'utf8').split(/^## /m).filter((text) => text.startsWith('Metrics')).join().split(/^\|---.*$/m);
  for (const [, name, kind, labels] of section.matchAll(/^\| `(\w+)` \| (\w+) \| (.*?) \|/gm)) {
    add(metrics, name, kind, [...labels.matchAll(/\w+/g)].map(([label]) => [label]));
  }
}

/** The text that Prometheus reads. */
function addServer(metrics, text) {
  const kinds = new Map([...text.matchAll(/^# TYPE (\w+) (\w+)$/gm)].map(([, name, kind]) => [name, kind]));
  for (const [, series, labels] of text.matchAll(/^(\w+)(\{.*\})? \S+$/gm)) {
    const name = kinds.has(series) ? series : series.replace(/_(bucket|sum|count)$/, '');
    add(metrics, name, kinds.get(name), [...(labels ?? '').matchAll(/(\w+)="([^"]*)"/g)].map(([, label, value]) => [label, value]));
  }
}

function add(metrics, name, kind, labels) {
  if (!metrics.has(name)) metrics.set(name, { kind, labels: new Map() });
  const known = metrics.get(name).labels;
  for (const [label, value] of labels) {
    if (!known.has(label)) known.set(label, new Set());
    if (value !== undefined) known.get(label).add(value);
  }
}

/** A stream, an error, and a pool with a job that a worker has. */
async function makeTraffic(server) {
  const text = { headers: { 'Content-Type': 'text/plain' }, body: 'x' };
  await server.request('PUT', '/v1/stream/s', text);
  await server.request('POST', '/v1/stream/s', text);
  await server.request('GET', '/v1/stream/none');
  await server.request('PUT', '/v1/pool/p', { body: '{"type":"claim"}' });
  await server.request('POST', '/v1/pool/p', text);
  await server.request('POST', '/v1/pool/p/work?worker=w&wait=60');
  // The figures of pools are published ten times a second.
  while (!(await server.request('GET', '/metrics')).body.includes('\nencke_pool_worker_jobs_total{')) await sleep(20);
}
