// A certificate for this machine, signed by itself: 127.0.0.1 and localhost, valid for two days.

import { execFileSync } from 'node:child_process';
import { createHash, X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

const REQUEST = 'req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost';
const NAMES = 'subjectAltName=DNS:localhost,IP:127.0.0.1';

/**
 * Makes a certificate and its key in `folder`. Returns the paths of both files in PEM format, and the digest of the public
 * key as Chromium's `--ignore-certificate-errors-spki-list` takes it.
 */
export function selfSigned(folder) {
  const cert = join(folder, 'cert.pem');
  const key = join(folder, 'key.pem');
  const args = [...REQUEST.split(' '), '-addext', NAMES, '-keyout', key, '-out', cert];
  execFileSync('openssl', args, { stdio: ['ignore', 'ignore', 'pipe'] });
  const { publicKey } = new X509Certificate(readFileSync(cert));
  const spki = createHash('sha256').update(publicKey.export({ type: 'spki', format: 'der' })).digest('base64');
  return { cert, key, spki };
}
