// The other files of contrib.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Encke } from '../web/encke.mjs';
import { waitFor } from '../web/wait.mjs';
import { yaml } from './promrules.mjs';
import { program } from './proxy-process.mjs';

const CONTRIB = fileURLToPath(new URL('../../contrib', import.meta.url));
const LOGROTATE = program('logrotate');
const folder = mkdtempSync(join(tmpdir(), 'encke-contrib-'));
after(() => rmSync(folder, { recursive: true, force: true }));

test('the list of files is complete', () => {
  const readme = readFileSync(join(CONTRIB, 'README.md'), 'utf8');
  const linked = [...readme.matchAll(/\]\(([\w./-]+)\)/g)].map(([, path]) => path).filter((path) => !path.startsWith('..'));
  const isFile = (path) => statSync(join(CONTRIB, path)).isFile() && path !== 'README.md' && !path.includes('/.');
  const files = readdirSync(CONTRIB, { recursive: true }).filter(isFile);
  assert.deepEqual(linked.sort(), files.sort());
});

test('the configuration of Traefik can be read, and names only what it has', () => {
  const { entryPoints, certificatesResolvers, providers } = yaml(join(CONTRIB, 'traefik/traefik.yml'));
  const { http: { routers, services, serversTransports } } = yaml(join(CONTRIB, 'traefik/encke.yml'));
  assert.equal(providers.file.filename, '/etc/traefik/encke.yml');
  assert.ok(entryPoints.web.http.redirections.entryPoint.to in entryPoints);
  for (const { entryPoints: used, service, tls } of Object.values(routers)) {
    assert.ok(used.every((name) => name in entryPoints));
    assert.ok(service in services);
    assert.ok(tls.certResolver in certificatesResolvers);
  }
  for (const { loadBalancer } of Object.values(services)) assert.ok(loadBalancer.serversTransport in serversTransports);
});

const skip = !LOGROTATE && "logrotate is missing: install it, or run `make contrib`, which unpacks Debian's package";
test('logrotate renames the files of the logs, and Encke goes on with new ones', { skip }, async () => {
  const logs = join(folder, 'logs');
  mkdirSync(logs, { mode: 0o700 });
  const files = { access: join(logs, 'access.log'), audit: join(logs, 'audit.log') };
  const tuning = Object.entries(files).flatMap(([log, file]) => ['--tuning', `${log}-log-file=${file}`]);
  const encke = await Encke.start({ data: join(folder, 'data'), args: ['--access-log', 'json', ...tuning] });
  after(() => encke.kill());
  const has = (file, text) => waitFor(`${file} has ${text}`, () => existsSync(file) && readFileSync(file, 'utf8').includes(text));

  await encke.request('GET', '/healthz?before');
  await encke.request('GET', '/', { headers: { Host: 'evil.example.com' } });
  await has(files.access, 'healthz?before');
  await has(files.audit, 'wrong_host');

  const text = readFileSync(join(CONTRIB, 'logrotate/encke'), 'utf8');
  const changed = text.replace('/var/log/encke/', `${logs}/`).replace('systemctl reload encke', `kill -HUP ${encke.pid}`);
  assert.ok(changed.includes(logs) && changed.includes('kill'), changed);
  writeFileSync(join(folder, 'logrotate'), changed, { mode: 0o600 });
  execFileSync(LOGROTATE, ['--force', '--state', join(folder, 'state'), join(folder, 'logrotate')], { stdio: 'pipe' });
  // A file is there again with its next line, which may come before the signal.
  await waitFor('both logs have new files', async () => {
    await encke.request('GET', '/healthz?after');
    await encke.request('PUT', '/v1/stream/a', { headers: { Origin: 'https://evil.example.com' } });
    return Object.values(files).every((file) => existsSync(file));
  });
  await has(files.access, 'healthz?after');
  await has(files.audit, 'origin');
  for (const file of Object.values(files)) assert.equal(statSync(file).mode & 0o777, 0o600, file);
  await has(`${files.access}.1`, 'healthz?before');
  await has(`${files.audit}.1`, 'wrong_host');
  assert.ok(!readFileSync(files.access, 'utf8').includes('healthz?before'));
});
