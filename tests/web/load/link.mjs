// Passes TCP connections on, in a process of its own: while it is stopped, whoever connects through it is cut off, and afterwards gets all that was on its way.
//
// usage: node link.mjs PORT    prints the port that it listens to

import net from 'node:net';

const [port] = process.argv.slice(2).map(Number);
const server = net.createServer({ noDelay: true }, (near) => {
  const far = net.connect({ port, host: '127.0.0.1', noDelay: true });
  near.pipe(far).pipe(near);
  for (const [one, other] of [[near, far], [far, near]]) one.on('error', () => {}).once('close', () => other.destroy());
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
