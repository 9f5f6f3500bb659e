// nginx, Caddy, HAProxy and Traefik as child processes, with the configurations of contrib. Only ports, paths of certificates, addresses to
// listen on, and what needs a whole system (users, its log, open files) differ; what a package's main configuration sets comes around it.

import { execFileSync, spawn } from 'node:child_process';
import { accessSync, constants, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { networkInterfaces, tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { connect } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { endWithUs } from '../web/child.mjs';
import { fixedPort } from '../web/ports.mjs';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const START_MS_MAX = 60_000;
const OUTPUT_CHARS_MAX = 64 * 1024;

/** What HAProxy needs of its package and of the machine is left out. */
const WITHOUT_SYSTEM = [[/^ +(user|group) haproxy\n|^ +log .*\n|^ +option (http|tcp)log\n/gm, ''], [/maxconn \d+/, 'maxconn 500']];

/** The public name in the configurations. */
export const NAME = 'push.example.com';

/** The program of that name: as the environment says, of the system, or as the Makefile unpacks it; undefined if it is missing. */
export function program(name) {
  const set = process.env[name.toUpperCase()];
  const unpacked = ['sbin', 'bin'].map((folder) => join(ROOT, 'target/tools/usr', folder));
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', ...unpacked];
  return (set ? [set] : folders.map((folder) => join(folder, name))).find((path) => {
    try {
      accessSync(path, constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}

export class Proxy {
  #child;
  #directory;
  #output = '';

  /** The ports for https and http. */
  tls;
  plain;

  /** Checks the configuration, starts the proxy in front of the server at `upstream` (host and port), and waits until it answers. */
  static async start(name, upstream) {
    const proxy = new Proxy();
    const binary = program(name.split(' ')[0]);
    proxy.#directory = mkdtempSync(join(tmpdir(), `encke-${name}-`));
    proxy.tls = await fixedPort();
    proxy.plain = await fixedPort();
    try {
      const { check, run } = proxy.#configure(name, upstream);
      if (check) execFileSync(binary, check, { stdio: 'pipe', env: proxy.#environment() });
      await proxy.#run(binary, run);
    } catch (error) {
      await proxy.stop();
      throw error;
    }
    return proxy;
  }

  /** Has nginx, Caddy or HAProxy read its configuration anew, and waits until old processes take no connections. */
  async reload(name) {
    if (name === 'caddy') {
      execFileSync(program(name), ['reload', '--force', ...this.#caddyfile()], { stdio: 'pipe', env: this.#environment() });
      return;
    }
    const [signal, sign] = { nginx: ['SIGHUP', /gracefully shutting down/g], haproxy: ['SIGUSR2', /Loading success/g] }[name];
    const count = () => [...this.#output.matchAll(sign)].length;
    const before = count();
    this.#child.kill(signal);
    for (const deadline = performance.now() + START_MS_MAX; count() === before; ) {
      if (performance.now() > deadline) throw new Error(`${name} was not reloaded; it printed:\n${this.#output}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }

  /** Ends the process, and removes its directory. */
  async stop() {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) {
      const gone = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGTERM'); // To nginx and HAProxy a fast stop: open streams end.
      const late = setTimeout(() => child.kill('SIGKILL'), 10_000);
      await gone;
      clearTimeout(late);
    }
    rmSync(this.#directory, { recursive: true, force: true });
  }

  get output() {
    return this.#output;
  }

  /** Writes the configuration; returns the arguments with which the program checks it, if it can, and those with which it runs. */
  #configure(name, upstream) {
    switch (name) {
      case 'nginx':
        return this.#nginx(upstream);
      case 'caddy':
        return this.#caddy(upstream);
      case 'haproxy':
        return this.#haproxy(upstream);
      case 'haproxy with TLS passed through':
        return this.#haproxyPassingThrough(upstream);
      case 'traefik':
        return this.#traefik(upstream);
    }
  }

  #nginx(upstream) {
    const { cert, key } = this.#certificate();
    const path = (name) => join(this.#directory, name);
    const version6 = Object.values(networkInterfaces()).flat().some(({ address }) => address === '::1');
    writeFileSync(path('site.conf'), contrib('nginx/encke.conf', [
      [/127\.0\.0\.1:4437/g, upstream],
      [/listen \[::\]:(\d+)(.*);/g, (_, port, rest) => (version6 ? `listen [::1]:${this.#port(port)}${rest};` : '')],
      [/listen (80|443)/g, (_, port) => `listen 127.0.0.1:${this.#port(port)}`],
      [/\/etc\/letsencrypt\/\S+\/fullchain\.pem/g, cert],
      [/\/etc\/letsencrypt\/\S+\/privkey\.pem/g, key],
    ]));
    const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((of) => `${of}_temp_path ${path(of)};`);
    writeFileSync(path('nginx.conf'), `
${process.getuid() === 0 ? 'user root;' : ''}
daemon off;
pid ${path('pid')};
worker_processes 1;
worker_shutdown_timeout 30s;
events { worker_connections 768; }
http {
  ${temporary.join('\n  ')}
  access_log off;
  include ${path('site.conf')};
}
`);
    const run = ['-p', this.#directory, '-e', 'stderr', '-c', path('nginx.conf'), '-g', 'error_log stderr notice;'];
    return { check: ['-t', ...run], run };
  }

  #caddy(upstream) {
    const path = (name) => join(this.#directory, name);
    mkdirSync(path('storage'));
    // Its own authority signs, instead of one that would have to reach this machine.
    writeFileSync(path('Caddyfile'), contrib('caddy/Caddyfile', [
      [/127\.0\.0\.1:4437/g, upstream],
      [/grace_period 3s/, `grace_period 1s
	admin unix/${path('admin')}
	local_certs
	skip_install_trust
	http_port ${this.plain}
	https_port ${this.tls}
	default_bind 127.0.0.1
	storage file_system ${path('storage')}`],
    ]));
    return { check: ['validate', ...this.#caddyfile()], run: ['run', ...this.#caddyfile()] };
  }

  #caddyfile() {
    return ['--adapter', 'caddyfile', '--config', join(this.#directory, 'Caddyfile')];
  }

  #haproxy(upstream) {
    const { cert, key } = this.#certificate();
    const path = (name) => join(this.#directory, name);
    writeFileSync(path('both.pem'), readFileSync(cert, 'utf8') + readFileSync(key, 'utf8'));
    writeFileSync(path('haproxy.cfg'), contrib('haproxy/haproxy.cfg', [
      [/127\.0\.0\.1:4437/g, upstream],
      ...WITHOUT_SYSTEM,
      [/bind :(80|443)/g, (_, port) => `bind 127.0.0.1:${this.#port(port)}`],
      [/\/etc\/haproxy\/push\.example\.com\.pem/, path('both.pem')],
    ]));
    return { check: ['-c', '-f', path('haproxy.cfg')], run: ['-W', '-f', path('haproxy.cfg')] };
  }

  #haproxyPassingThrough(upstream) {
    const path = join(this.#directory, 'haproxy.cfg');
    writeFileSync(path, contrib('haproxy/tls-passthrough.cfg', [[/127\.0\.0\.1:4437/g, upstream], ...WITHOUT_SYSTEM, [/bind :443/, `bind 127.0.0.1:${this.tls}`]]));
    return { check: ['-c', '-f', path], run: ['-W', '-f', path] };
  }

  #traefik(upstream) {
    const { cert, key } = this.#certificate();
    const path = (name) => join(this.#directory, name);
    writeFileSync(path('traefik.yml'), contrib('traefik/traefik.yml', [
      [/':(80|443)'/g, (_, port) => `127.0.0.1:${this.#port(port)}`],
      // The port of https is another one here.
      [/to: websecure/, `to: ':${this.tls}'`],
      [/graceTimeOut: 10s/, 'graceTimeOut: 1s'],
      [/^certificatesResolvers:\n(  .*\n)+/m, ''],
      [/\/etc\/traefik\/encke\.yml/, path('encke.yml')],
    ]));
    // A certificate of this test, instead of one whose authority would have to reach this machine.
    writeFileSync(path('encke.yml'), contrib('traefik/encke.yml', [
      [/127\.0\.0\.1:4437/g, upstream],
      [/{ certResolver: letsencrypt }/, '{}'],
    ]) + `tls: { certificates: [{ certFile: ${cert}, keyFile: ${key} }] }\n`);
    return { run: [`--configFile=${path('traefik.yml')}`] };
  }

  #certificate() {
    const [cert, key] = ['chain.pem', 'key.pem'].map((name) => join(this.#directory, name));
    execFileSync('openssl', [
      'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', `/CN=${NAME}`,
      '-addext', `subjectAltName=DNS:${NAME}`, '-keyout', key, '-out', cert,
    ], { stdio: 'ignore' });
    return { cert, key };
  }

  #port(documented) {
    return { 443: this.tls, 80: this.plain }[documented];
  }

  #environment() {
    return { ...process.env, HOME: this.#directory, XDG_CONFIG_HOME: this.#directory, XDG_DATA_HOME: this.#directory };
  }

  async #run(binary, args) {
    this.#child = spawn(binary, args, { stdio: ['ignore', 'pipe', 'pipe'], env: this.#environment() });
    endWithUs(this.#child);
    let failed;
    this.#child.once('error', (error) => (failed = error));
    this.#child.once('exit', (code) => (failed = new Error(`it ended with ${code}`)));
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => (this.#output = (this.#output + text).slice(-OUTPUT_CHARS_MAX)));
    }
    const deadline = performance.now() + START_MS_MAX;
    while (!(await handshake(this.tls))) {
      if (failed || performance.now() > deadline) throw new Error(`${binary}: ${failed?.message ?? 'not ready'}; it printed:\n${this.#output}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
}

/** A file of contrib with replacements, each of which must apply. */
function contrib(file, replacements) {
  return replacements.reduce((text, [pattern, by]) => {
    const replaced = text.replace(pattern, by);
    if (replaced === text) throw new Error(`contrib/${file}: nothing is like ${pattern}`);
    return replaced;
  }, readFileSync(join(ROOT, 'contrib', file), 'utf8'));
}

/** Whether a TLS handshake succeeds, that is, the proxy listens and has its certificate. */
function handshake(port) {
  return new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1', servername: NAME, rejectUnauthorized: false });
    socket.once('secureConnect', () => resolve(true)).once('error', () => resolve(false));
    socket.once('close', () => resolve(false));
    socket.on('secureConnect', () => socket.destroy());
  });
}
