// The server as a whole: what it does now and in the last hour, its configuration, and its machine.

import { get } from './api.js';
import { Table, bytes, clock, count, h, lineForm, field, seconds, section, setText } from './elements.js';
import { Plot } from './plot.js';

const FIGURES = [
  ['Connections', (now) => count(now.connections)],
  ['Subscribers', (now) => count(now.subscribers)],
  ['Too slow', (now) => count(now.behind)],
  ['Streams', (now) => count(now.streams)],
  ['Streams in memory', (now) => count(now.streamsInMemory)],
  ['Records since start', (now) => count(now.records)],
  ['Memory', (now) => bytes(now.residentBytes)],
  ['Held for clients', (now) => bytes(now.bufferedBytes)],
  ['Log and history', (now) => bytes(now.segmentBytes + now.historyBytes)],
  ['Open files', (now) => count(now.openFiles)],
  ['Processor time', (now) => `${count(now.cpuSeconds)} s`],
  ['Running for', (now) => seconds(now.uptimeSeconds)],
];

const perSecond = (value) => `${count(value)}/s`;
const bytesPerSecond = (value) => `${bytes(value)}/s`;
const milliseconds = (value) => `${count(value)} ms`;

const PLOTS = [
  ['Connections', [['open', 'connections'], ['too slow', 'behind']], count],
  ['New connections', [['accepted', 'accepted']], perSecond],
  ['Requests', [['requests', 'requests']], perSecond],
  ['Records committed', [['records', 'records']], perSecond],
  ['Deliveries', [['deliveries', 'deliveries']], perSecond],
  ['Network', [['sent', 'sentBytes'], ['received', 'receivedBytes']], bytesPerSecond],
  ['Written to the log', [['bytes', 'logBytes']], bytesPerSecond],
  ['Time of fdatasync', [['half within', 'syncP50Ms'], ['99 % within', 'syncP99Ms']], milliseconds],
  ['Oldest record that waits for its delivery', [['age', 'deliveryLagMs']], milliseconds],
];

/** A table of counts by reason. */
const countsTable = (caption, empty) =>
  new Table(caption, [
    { title: 'Reason', text: ([reason]) => reason, name: true },
    { title: 'Count', text: ([, number]) => count(number), number: true },
  ], empty);

const byCount = (counts) => Object.entries(counts).sort(([, a], [, b]) => b - a);

function beginServer(_, page) {
  const values = FIGURES.map(() => h('dd'));
  const figures = h('dl', { class: 'figures' }, FIGURES.map(([title], place) => h('div', {}, h('dt', {}, title), values[place])));
  const plots = PLOTS.map(([title, series, format]) =>
    new Plot(title, series.map(([label, column]) => ({ label, column })), format));
  const closed = countsTable('Connections that the server closed, by reason', 'The server has closed none.');
  const refused = countsTable('Requests and connections refused, by reason or status', 'Nothing was refused.');
  const hangups = h('p', { class: 'quiet' });
  const mailboxes = new Table('Queues between threads', [
    { title: 'Queue', text: (one) => one.name, name: true },
    { title: 'Items', text: (one) => count(one.depth), number: true },
    { title: 'Bytes', text: (one) => bytes(one.bytes), number: true },
    { title: 'Oldest', text: (one) => seconds(one.ageSeconds), number: true },
    { title: 'Refused', text: (one) => count(one.refused), number: true },
  ]);
  return {
    element: h('div', {},
      section('Now', figures),
      section('The last hour', h('div', { class: 'columns' }, plots.map((plot) => plot.element))),
      h('div', { class: 'columns' },
        section('Closed connections', closed.element, hangups),
        section('Refused', refused.element)),
      section('Queues', mailboxes.element)),
    everySeconds: 5,
    showsHealth: true,
    lastHistory: 0,
    async refresh(signal) {
      const now = await get('/v1/admin/overview', signal);
      page.health(now);
      FIGURES.forEach(([, show], place) => setText(values[place], show(now)));
      closed.update(byCount(now.closed), ([reason]) => reason);
      refused.update(byCount(now.refused), ([reason]) => reason);
      setText(hangups, `${count(now.hangups)} were closed by their clients.`);
      mailboxes.update(now.mailboxes, (one) => one.name);
      // A sample comes every ten seconds.
      if (Date.now() - this.lastHistory < 10_000) return;
      const history = await get('/v1/admin/history', signal);
      this.lastHistory = Date.now();
      for (const plot of plots) plot.update(history);
    },
  };
}

/** What the server does now and in the last hour. */
export const server = { title: 'Server', begin: beginServer };

function beginConfiguration() {
  const table = new Table('Settings, their values and where each comes from', [
    { title: 'Setting', text: (one) => (one.group === 'Tuning' ? `tuning.${one.name}` : one.name), name: true },
    { title: 'Value', text: (one) => one.value ?? 'not set', name: true },
    { title: 'Origin', text: (one) => one.origin + (one.lowered ? ', lowered by another limit' : one.needs_restart ? ', changed: needs a restart' : ''), name: true },
    { title: 'What it is', text: (one) => one.help, name: true },
  ], 'No setting has this in its name.');
  const control = h('p');
  let settings = [];
  let wanted = { name: '', given: undefined };
  const show = () => {
    const name = wanted.name.trim().toLowerCase();
    const shown = settings.filter((one) => one.name.includes(name) && (!wanted.given || one.given));
    table.update(shown, (one) => one.name);
  };
  const form = lineForm(() => {},
    field('Name contains', h('input', { name: 'name', type: 'search', autocomplete: 'off' })),
    h('label', { class: 'check' }, h('input', { name: 'given', type: 'checkbox' }), 'only those that were set'));
  form.addEventListener('input', () => {
    wanted = { name: form.elements.name.value, given: form.elements.given.checked };
    show();
  });
  return {
    element: section('Configuration', form, table.element, control),
    everySeconds: 0,
    async refresh(signal) {
      if (settings.length) return;
      const answer = await get('/v1/admin/configuration', signal);
      settings = answer.settings;
      setText(control, answer.access ? `Access control: ${answer.access}` : 'There is no access control.');
      show();
    },
  };
}

/** The settings with their origins. */
export const configuration = { title: 'Configuration', begin: beginConfiguration };

function beginMachine(_, page) {
  const checks = new Table('Checks of the machine and of the data directory', [
    { title: 'Result', text: (one) => one.verdict.replaceAll('_', ' ') },
    { title: 'What', text: (one) => one.name, name: true },
    { title: 'Here', text: (one) => one.value, name: true },
    { title: 'Needed', text: (one) => one.need, name: true },
    { title: 'Why', text: (one) => one.why, name: true },
  ]);
  const verdict = h('p', {}, 'The doctor writes to the disk for a moment to see how fast it is.');
  const toSet = h('pre');
  const fleetState = h('p', { class: 'quiet' }, '…');
  const logs = new Table('Logs of this node in the order of its fleet', [
    { title: 'Log', text: (one) => one.log, number: true },
    { title: 'State', text: (one) => one.unready ?? 'ready', name: true },
    { title: 'Position', text: (one) => count(one.position), number: true },
    { title: 'Last position', text: (one) => count(one.lastPosition), number: true },
    { title: 'Behind for', text: (one) => seconds(one.lagSeconds), number: true },
    { title: 'Round trip', text: (one) => milliseconds(one.roundTripMs), number: true },
    { title: 'Brokers silent for', text: (one) => seconds(one.silenceSeconds), number: true },
    { title: 'Sent again', text: (one) => count(one.retries), number: true },
  ], 'There are no logs in a fleet.');
  const examine = async () => {
    setText(verdict, 'Examining…');
    const report = await get('/v1/admin/doctor');
    checks.update(report.checks, (one) => one.name);
    const state = report.fits ? 'The machine suits' : 'The machine does not suit';
    setText(verdict, `${state} ${count(report.connections)} connections (${clock(Date.now())}).`);
    setText(toSet, report.set.map((line) => `${line.file}: ${line.line}`).join('\n'));
  };
  return {
    element: h('div', {},
      section('Doctor', verdict, h('div', { class: 'actions' },
        h('button', { type: 'button', class: 'main', click: () => page.act(examine) }, 'Examine')), checks.element, toSet),
      section('Fleet', fleetState, logs.element)),
    everySeconds: 5,
    async refresh(signal) {
      const fleet = await get('/v1/admin/fleet', signal);
      setText(fleetState, fleet.node ? `This is the node ${fleet.node}.` : 'The server is by itself, and in no fleet.');
      logs.update(fleet.logs.map((one, log) => ({ ...one, log })), (one) => one.log);
    },
  };
}

/** The doctor's report, and what the node knows of its fleet. */
export const machine = { title: 'Machine and fleet', begin: beginMachine };
