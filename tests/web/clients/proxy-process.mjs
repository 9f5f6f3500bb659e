// Caddy and nginx as child processes, with the configurations of docs/proxies.md. Only ports, paths of certificates and addresses to
// listen on differ from the document; what a package's main configuration sets (directories, logs) comes around it.

import { execFileSync, spawn } from 'node:child_process';
import { accessSync, constants, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { connect } from 'node:tls';
import { fileURLToPath } from 'node:url';
import { endWithUs } from '../child.mjs';
import { blocks } from '../docs/blocks.mjs';

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const DOCUMENT = join(ROOT, 'docs/proxies.md');
const START_MS_MAX = 60_000;
const OUTPUT_CHARS_MAX = 64 * 1024;

/** The public name in the document. */
export const NAME = 'push.example.com';

/** The only block of a language in the document. */
export function documented(language) {
  const found = blocks(DOCUMENT).filter((block) => block.language === language);
  if (found.length !== 1) throw new Error(`${DOCUMENT}: ${found.length} blocks of ${language}`);
  return found[0].text;
}

/** The program of that name: as the environment says, of the system, or as the Makefile unpacks it; undefined if it is missing. */
export function program(name) {
  const set = process.env[name.toUpperCase()];
  const folders = [...(process.env.PATH ?? '').split(delimiter), '/usr/sbin', ...['sbin', 'bin'].map((bin) => join(ROOT, 'target/tools/usr', bin))];
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

  /** Starts nginx or Caddy in front of the server at `upstream` (host and port), and waits until it answers. */
  static async start(name, upstream) {
    const proxy = new Proxy();
    proxy.#directory = mkdtempSync(join(tmpdir(), `encke-${name}-`));
    [proxy.tls, proxy.plain] = await freePorts(2);
    try {
      const config = name === 'nginx' ? proxy.#nginx(upstream) : proxy.#caddy(upstream);
      await proxy.#run(program(name), config);
    } catch (error) {
      await proxy.stop();
      throw error;
    }
    return proxy;
  }

  /** Ends the process, and removes its directory. */
  async stop() {
    const child = this.#child;
    if (child && child.exitCode === null && child.signalCode === null) {
      const gone = new Promise((resolve) => child.once('exit', resolve));
      child.kill('SIGTERM'); // To nginx a fast stop: open streams end.
      const late = setTimeout(() => child.kill('SIGKILL'), 10_000);
      await gone;
      clearTimeout(late);
    }
    rmSync(this.#directory, { recursive: true, force: true });
  }

  get output() {
    return this.#output;
  }

  #nginx(upstream) {
    const path = (name) => join(this.#directory, name);
    execFileSync('openssl', [
      'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes', '-days', '2', '-subj', `/CN=${NAME}`,
      '-addext', `subjectAltName=DNS:${NAME}`, '-keyout', path('key.pem'), '-out', path('chain.pem'),
    ], { stdio: 'ignore' });
    const version6 = Object.values(networkInterfaces()).flat().some(({ address }) => address === '::1');
    const site = replaceAll(documented('nginx'), [
      [/127\.0\.0\.1:4437/g, upstream],
      [/listen \[::\]:(\d+)(.*);/g, (_, port, rest) => (version6 ? `listen [::1]:${this.#port(port)}${rest};` : '')],
      [/listen (\d+)/g, (_, port) => `listen 127.0.0.1:${this.#port(port)}`],
      [/\/etc\/letsencrypt\/\S+\/fullchain\.pem/g, path('chain.pem')],
      [/\/etc\/letsencrypt\/\S+\/privkey\.pem/g, path('key.pem')],
    ]);
    writeFileSync(path('site.conf'), site);
    const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((of) => `${of}_temp_path ${path(of)};`);
    writeFileSync(path('nginx.conf'), `
${process.getuid() === 0 ? 'user root;' : ''}
daemon off;
pid ${path('pid')};
worker_processes 1;
events { worker_connections 768; }
http {
  ${temporary.join('\n  ')}
  access_log off;
  include ${path('site.conf')};
}
`);
    return ['-p', this.#directory, '-e', 'stderr', '-c', path('nginx.conf'), '-g', 'error_log stderr;'];
  }

  #caddy(upstream) {
    const path = (name) => join(this.#directory, name);
    const site = replaceAll(documented('caddyfile'), [[/127\.0\.0\.1:4437/g, upstream]]);
    mkdirSync(path('storage'));
    // Its own authority signs, instead of one that would have to reach this machine.
    writeFileSync(path('Caddyfile'), `{
	admin off
	local_certs
	skip_install_trust
	http_port ${this.plain}
	https_port ${this.tls}
	default_bind 127.0.0.1
	storage file_system ${path('storage')}
	grace_period 1s
}
${site}
`);
    return ['run', '--adapter', 'caddyfile', '--config', path('Caddyfile')];
  }

  #port(documented) {
    return { 443: this.tls, 80: this.plain }[documented];
  }

  async #run(binary, args) {
    this.#child = spawn(binary, args, { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, HOME: this.#directory, XDG_CONFIG_HOME: this.#directory, XDG_DATA_HOME: this.#directory } });
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

function replaceAll(text, replacements) {
  return replacements.reduce((text, [pattern, by]) => {
    const replaced = text.replace(pattern, by);
    if (replaced === text) throw new Error(`${DOCUMENT}: nothing is like ${pattern}`);
    return replaced;
  }, text);
}

/** Ports that were free a moment ago. */
async function freePorts(count) {
  const servers = Array.from({ length: count }, () => createServer());
  const ports = [];
  for (const server of servers) {
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    ports.push(server.address().port);
  }
  for (const server of servers) await new Promise((resolve) => server.close(resolve));
  return ports;
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
