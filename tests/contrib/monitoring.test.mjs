// The dashboard and the alerts use metrics, labels and values that the server has, and the alerts fire when they should.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { knownMetrics } from './metrics.mjs';
import { promrules, yaml } from './promrules.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const contrib = (file) => join(ROOT, 'contrib', file);
const DASHBOARD = JSON.parse(readFileSync(contrib('grafana/encke.json'), 'utf8'));
const ALERTS = contrib('prometheus/alerts.yml');
const DOCUMENTS = 'https://github.com/encke/encke/blob/main/';
/** Labels that Prometheus adds to all series. */
const ADDED = ['instance', 'job'];
/** What Prometheus makes itself. */
const OWN_METRICS = new Map([['up', { kind: 'gauge', labels: new Map() }]]);

const rules = yaml(ALERTS).groups.flatMap((group) => group.rules);
const panels = DASHBOARD.panels.flatMap((panel) => [panel, ...(panel.panels ?? [])]).filter(({ type }) => type !== 'row');
const targets = panels.flatMap(({ title, targets }) => targets.map((target) => ({ where: title, ...target })));
const annotations = DASHBOARD.annotations.list.map(({ name, expr }) => ({ where: name, expr, legendFormat: '' }));
const folder = mkdtempSync(join(tmpdir(), 'encke-contrib-'));
let metrics;

before(async () => {
  metrics = new Map([...OWN_METRICS, ...(await knownMetrics(folder))]);
});
after(() => rmSync(folder, { recursive: true, force: true }));

test('the dashboard is what its program writes', () => {
  execFileSync(contrib('grafana/dashboard.py'), ['--check'], { stdio: 'pipe' });
});

test('the dashboard asks for metrics and labels that the server has, and for rates of counters only', () => {
  const queries = [...targets, ...annotations].map(({ where, expr, legendFormat }) => ({
    where, legendFormat, expr: expr.replaceAll('$__rate_interval', '5m').replaceAll('$instance', '.*'),
  }));
  for (const [at, described] of describe(queries).entries()) {
    const { where, expr, legendFormat } = queries[at];
    check(where, described);
    for (const { metric, rated } of described.selections) {
      const { name, kind } = find(where, metric);
      const counts = kind === 'counter' || (kind === 'histogram' && name !== metric);
      assert.equal(rated, counts, `${where}: ${expr}: ${metric} is a ${kind}`);
    }
    const [outermost] = described.groupings;
    const labels = outermost ? outermost.labels : described.selections.flatMap(({ metric }) => labelsOf(where, metric));
    for (const [, label] of legendFormat.matchAll(/\{\{(\w+)\}\}/g)) assert.ok(labels.includes(label), `${where}: ${expr} has no label ${label}`);
  }
  for (const { query } of DASHBOARD.templating.list) {
    const [, metric, label] = /^label_values\((\w+), (\w+)\)$/.exec(query) ?? [];
    if (metric) assert.ok(labelsOf('variable', metric).includes(label), query);
  }
});

test('the alerts ask for metrics, labels and values that the server has', () => {
  const documents = ['operations', 'fleet', 'pools'].map((name) => readFileSync(join(ROOT, `docs/${name}.md`), 'utf8')).join();
  for (const [at, described] of describe(rules).entries()) {
    const { alert } = rules[at];
    check(alert, described);
    for (const { metric, values } of described.selections) {
      for (const [label, named] of Object.entries(values).filter(([label]) => !ADDED.includes(label))) {
        const shown = find(alert, metric).labels.get(label);
        for (const value of named) {
          const known = shown.has(value) || /^[45]\d\d$/.test(value) || documents.includes(`\`${value}\``);
          assert.ok(known, `${alert}: no document names the value ${value} of ${metric}{${label}}`);
        }
      }
    }
  }
});

test('each alert says what is wrong and where to read on, and has a test', () => {
  const tests = readFileSync(contrib('prometheus/alerts.test.yml'), 'utf8');
  for (const { alert, labels, annotations } of rules) {
    assert.ok(['critical', 'warning'].includes(labels.severity), alert);
    assert.deepEqual(Object.keys(annotations).sort(), ['description', 'runbook_url', 'summary'], alert);
    assert.ok(annotations.runbook_url.startsWith(`${DOCUMENTS}docs/`), alert);
    assert.ok(tests.includes(`'{alertname="${alert}"}'`), `${alert} has no test`);
  }
});

test('links to documents lead to sections that exist', () => {
  const texts = ['grafana/encke.json', 'prometheus/alerts.yml'].map((file) => readFileSync(contrib(file), 'utf8')).join();
  const links = [...texts.matchAll(new RegExp(`${DOCUMENTS}([\\w/.-]+)(?:#([\\w-]+))?`, 'g'))];
  assert.ok(links.length > 30);
  for (const [link, path, anchor] of links) {
    assert.ok(existsSync(join(ROOT, path)), link);
    const headings = [...readFileSync(join(ROOT, path), 'utf8').matchAll(/^#+ (.*)$/gm)].map(([, heading]) => heading.toLowerCase().replace(/[^\w\s-]/g, '').replace(/\s/g, '-'));
    if (anchor) assert.ok(headings.includes(anchor), `${link}: there is no such section`);
  }
});

test('Prometheus accepts the configuration and the rules, and the tests of the alerts pass', () => {
  promrules('config', contrib('prometheus/prometheus.yml'));
  promrules('rules', ALERTS);
  promrules('test', contrib('prometheus/alerts.test.yml'));
});

test('the job of the configuration is the one that the alerts name', () => {
  const { scrape_configs: [job], rule_files: files } = yaml(contrib('prometheus/prometheus.yml'));
  assert.deepEqual(files, ['alerts.yml']);
  const named = describe(rules).flatMap(({ selections }) => selections.flatMap(({ values }) => values.job ?? []));
  assert.ok(named.length > 0 && named.every((name) => name === job.job_name), named.join());
});

/** What each query selects, as the parser of Prometheus says. */
function describe(queries) {
  return JSON.parse(promrules('queries', [], JSON.stringify(queries.map(({ expr }) => expr))));
}

/** Checks the labels by which a query selects and groups. */
function check(where, { selections, groupings }) {
  for (const { metric, values } of selections) {
    for (const label of Object.keys(values)) assert.ok(labelsOf(where, metric).includes(label), `${where}: ${metric} has no label ${label}`);
  }
  for (const { labels, metrics } of groupings) {
    for (const label of labels) {
      assert.ok(metrics.some((metric) => labelsOf(where, metric).includes(label)), `${where}: ${metrics} have no label ${label}`);
    }
  }
}

function labelsOf(where, series) {
  return [...find(where, series).labels.keys(), ...ADDED];
}

/** The metric of a series; a histogram has three. */
function find(where, series) {
  const name = metrics.has(series) ? series : series.replace(/_(bucket|sum|count)$/, '');
  const metric = metrics.get(name);
  assert.ok(metric && (name === series || metric.kind === 'histogram'), `${where}: there is no metric ${series}`);
  const labels = new Map(metric.labels);
  if (series.endsWith('_bucket')) labels.set('le', new Set());
  return { name, kind: metric.kind, labels };
}
