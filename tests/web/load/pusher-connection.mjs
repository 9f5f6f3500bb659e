// A WebSocket of the Pusher protocol, small enough for 20,000 in one process.

import net from 'node:net';

const EMPTY = Buffer.alloc(0);
/** The number of addresses of clients: one address has about 28,000 ports for connections to one server. */
const LOCAL_ADDRESSES = 8;
const UPGRADE = 'Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13';
/** The kinds of frames (RFC 6455, section 5.2). */
const [TEXT, CLOSE, PING, PONG] = [1, 8, 9, 10];

let opened = 0;

export class PusherConnection {
  #socket;
  #input = EMPTY;
  #isOpen = false;
  #code;
  #onMessage;

  /**
   * Connects. `onMessage` gets each message, parsed. `onEnd` is called once, when the connection has ended: with the code of the server's close
   * frame, with the status line of a response that refuses the WebSocket, or with undefined.
   */
  constructor({ address, key, onMessage, onEnd }) {
    const [host, port] = address.split(':');
    this.#onMessage = onMessage;
    this.#socket = net.connect({ host, port, localAddress: `127.0.${1 + (opened++ % LOCAL_ADDRESSES)}.1`, noDelay: true });
    this.#socket.write(`GET /app/${key}?protocol=7 HTTP/1.1\r\nHost: localhost\r\n${UPGRADE}\r\n\r\n`);
    this.#socket.on('data', (part) => this.#take(part));
    this.#socket.on('error', () => {});
    this.#socket.once('close', () => onEnd(this.#code));
  }

  send(message) {
    this.#write(TEXT, Buffer.from(JSON.stringify(message)));
  }

  /** Ends the TCP connection, or resets it, without a close frame. */
  hangUp({ reset = false } = {}) {
    if (reset && !this.#socket.connecting) this.#socket.resetAndDestroy();
    else this.#socket.destroy();
  }

  #take(part) {
    this.#input = this.#input.length === 0 ? part : Buffer.concat([this.#input, part]);
    if (!this.#isOpen && !this.#open()) return;
    for (let input = this.#input; ; input = this.#input) {
      if (input.length < 2) return;
      const short = input[1] & 127;
      const begin = short < 126 ? 2 : short === 126 ? 4 : 10;
      if (input.length < begin) return;
      const length = short < 126 ? short : short === 126 ? input.readUInt16BE(2) : Number(input.readBigUInt64BE(2));
      if (input.length < begin + length) return;
      this.#input = input.subarray(begin + length);
      this.#frame(input[0], input.subarray(begin, begin + length));
    }
  }

  /** Reads the response to the upgrade. False while it is not complete, or if it is no upgrade. */
  #open() {
    const end = this.#input.indexOf('\r\n\r\n');
    if (end < 0) return false;
    const head = this.#input.toString('latin1', 0, end);
    if (!head.startsWith('HTTP/1.1 101')) {
      [this.#code] = head.split('\r\n');
      this.#socket.destroy();
      return false;
    }
    this.#input = this.#input.subarray(end + 4);
    return (this.#isOpen = true);
  }

  #frame(first, payload) {
    const kind = first & 15;
    if ((first & 0x80) === 0) throw new Error('the server sends messages in fragments, which this client does not read');
    if (kind === TEXT) this.#onMessage(JSON.parse(payload.toString()));
    if (kind === PING) this.#write(PONG, payload);
    if (kind === CLOSE) {
      this.#code = payload.length < 2 ? undefined : payload.readUInt16BE(0);
      this.#write(CLOSE, payload.subarray(0, 2));
      this.#socket.end();
    }
  }

  /** Writes a frame, masked with zeros. */
  #write(kind, payload) {
    const { length } = payload;
    const size = length < 126 ? [0x80 | length] : [0xfe, length >> 8, length & 255];
    this.#socket.write(Buffer.concat([Buffer.from([0x80 | kind, ...size, 0, 0, 0, 0]), payload]));
  }
}
