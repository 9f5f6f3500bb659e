// Members of a stream by server-sent events, and clients that follow who they are.

import net from 'node:net';
import { ReturningClient } from './returning-client.mjs';

/** The number of addresses of clients: one address has about 28,000 ports for connections to one server. */
const LOCAL_ADDRESSES = 8;
/** How long a request for a list may take: a node that is stopped does not answer. */
const REQUEST_MS_MAX = 2_000;

let opened = 0;

/** A request whose response is an event stream. `onText` gets the response piece by piece, its head first. */
class EventStream {
  #socket;
  #status;

  constructor({ address, path, onText, onEnd }) {
    const [host, port] = address.split(':');
    this.#socket = net.connect({ host, port, localAddress: `127.0.${1 + (opened++ % LOCAL_ADDRESSES)}.1`, noDelay: true });
    this.#socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
    this.#socket.setEncoding('utf8');
    this.#socket.on('data', (text) => this.#take(text, onText));
    this.#socket.on('error', () => {});
    this.#socket.once('close', () => onEnd(this.#status));
  }

  /** Ends the TCP connection, or resets it. */
  hangUp({ reset = false } = {}) {
    if (reset && !this.#socket.connecting) this.#socket.resetAndDestroy();
    else this.#socket.destroy();
  }

  #take(text, onText) {
    if (this.#status) return;
    if (/^HTTP\/1.1 (?!200)/.test(text)) {
      [this.#status] = text.split('\r\n');
      this.#socket.destroy();
      return;
    }
    onText(text);
  }
}

/** A member. It follows nobody. */
export class StreamMember extends ReturningClient {
  #stream;

  rosters = new Map();
  channels = [];
  isConfirmed = false;

  constructor({ stream, ...options }) {
    super(options);
    this.#stream = stream;
  }

  /** The streams that have it as a member. */
  get joined() {
    return this.isConfirmed ? [this.#stream] : [];
  }

  open(onEnd) {
    const path = `/v1/stream/${this.#stream}?offset=now&live=sse&member=${this.user}`;
    const onText = () => {
      if (this.isConfirmed || this.isGone) return;
      this.isConfirmed = true;
      this.confirmed();
    };
    return new EventStream({ address: this.address, path, onText, onEnd });
  }

  forget() {
    this.isConfirmed = false;
  }
}

/** A client that follows the members of a stream, and is none. */
export class StreamFollower extends ReturningClient {
  #stream;
  #rest = '';

  joined = [];
  /** The members, by their ids, once they were told. */
  rosters = new Map();

  constructor({ stream, ...options }) {
    super(options);
    this.#stream = stream;
  }

  get channels() {
    return [this.#stream];
  }

  get isConfirmed() {
    return this.rosters.size > 0;
  }

  open(onEnd) {
    const path = `/v1/presence/${this.#stream}?live=sse`;
    return new EventStream({ address: this.address, path, onText: (text) => this.#read(text), onEnd });
  }

  forget() {
    this.#rest = '';
    this.rosters.clear();
  }

  #read(text) {
    const blocks = (this.#rest + text).split('\n\n');
    this.#rest = blocks.pop();
    for (const block of blocks) {
      const data = /^data:(.*)/m.exec(block)?.[1];
      // A server that stops says so.
      if (data && !this.isGone && !block.includes('event: disconnect')) this.#take(JSON.parse(data));
    }
  }

  #take({ type, id, count, members }) {
    if (type === 'members') {
      const roster = new Set(members.map((member) => member.id));
      if (roster.size !== count) this.contradict(this.#stream, 'a list has a member twice');
      this.rosters.set(this.#stream, roster);
      this.confirmed();
      return;
    }
    this.sightings.events++;
    const roster = this.rosters.get(this.#stream);
    if (type === 'join') {
      if (roster.has(id)) this.contradict(this.#stream, `${id} joins twice`);
      roster.add(id);
    }
    if (type === 'leave' && !roster.delete(id)) this.contradict(this.#stream, `${id} leaves and was not there`);
    if (roster.size !== count) this.contradict(this.#stream, `${count} members are counted, and ${roster.size} were told`);
  }
}

/** Lists of members by requests. */
export class StreamDirectory {
  /** Requests without an answer. */
  unanswered = 0;

  /** The ids of the members of a stream, as the server at an address lists them. */
  async users(address, stream) {
    const signal = AbortSignal.timeout(REQUEST_MS_MAX);
    const answer = await fetch(`http://${address}/v1/presence/${stream}`, { signal });
    const { members } = await answer.json();
    return members.map((member) => member.id);
  }
}
