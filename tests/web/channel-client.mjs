// Clients of a WebSocket of the server that continue after a cut, by docs/websocket.md. The constructor of WebSocket is given, so that the
// same code runs with `ws` and in the page of a browser; this file imports nothing.

const SUBPROTOCOL = 'encke.v1';
/** Close codes after which a client does not connect again. */
const FINAL_CODES = [1000, 1002, 1003, 1007, 1008, 1009, 4401, 4403];
const RECONNECT_MS = 50;

/** A connection that is opened again after a cut. */
class Channel {
  #WebSocket;
  #url;
  #socket;
  #ended = false;

  /** How often the server accepted the connection. */
  opened = 0;
  /** The errors that the server sent, and close codes that are final. */
  errors = [];

  constructor(WebSocket, url) {
    this.#WebSocket = WebSocket;
    this.#url = url;
    this.#connect();
  }

  send(message) {
    this.#socket.send(JSON.stringify(message));
  }

  end() {
    this.#ended = true;
    this.#socket.close(1000);
  }

  #connect() {
    if (this.#ended) return;
    const socket = new this.#WebSocket(this.#url, [SUBPROTOCOL]);
    this.#socket = socket;
    socket.onopen = () => {
      this.opened += 1;
      this.open();
    };
    socket.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.type === 'error' || message.type === 'disconnected') this.errors.push(message);
      else this.receive(message);
    };
    socket.onerror = () => {}; // `onclose` follows.
    socket.onclose = ({ code, reason }) => {
      if (this.#ended) return;
      if (FINAL_CODES.includes(code)) this.errors.push({ code, reason });
      else setTimeout(() => this.#connect(), RECONNECT_MS);
    };
  }
}

/** Follows streams, patterns and lists over one connection, each from its beginning and then from its last offset or position. */
class Subscriber extends Channel {
  #subscriptions;

  /** By the name of the subscription, what came in order: `{ stream, value }` for each message of a stream of JSON. */
  records = {};

  /** `subscriptions`: messages to subscribe, without `type` and `offset`. */
  constructor(WebSocket, url, subscriptions) {
    super(WebSocket, url);
    this.#subscriptions = new Map(subscriptions.map((message) => [nameOf(message), { ...message, offset: '-1' }]));
    for (const name of this.#subscriptions.keys()) this.records[name] = [];
  }

  open() {
    for (const message of this.#subscriptions.values()) this.send({ type: 'subscribe', ...message });
  }

  receive(message) {
    const name = message.subscription ?? message.stream;
    if (message.type === 'records') for (const value of message.data) this.records[name].push({ stream: message.stream, value });
    const { stream, streams } = this.#subscriptions.get(name);
    if (message.subscription && message.position) this.#subscriptions.set(name, { stream, streams, position: message.position });
    else if (!message.subscription && message.offset) this.#subscriptions.set(name, { stream, offset: message.offset });
  }
}

/**
 * Appends numbers to streams in turn, and keeps as many appends unacknowledged as the window holds. A producer sends what was not
 * acknowledged again after a cut. Without a producer nothing is sent twice.
 */
class Appender extends Channel {
  #streams;
  #producer;
  #window;
  #next = 0;
  #stopped = false;
  #unacknowledged = new Map();

  /** The numbers of a stream that were acknowledged, and those of which a cut left it unknown whether they are stored. */
  acknowledged = {};
  unknown = {};

  constructor(WebSocket, url, { streams, producer, window }) {
    super(WebSocket, url);
    this.#streams = streams;
    this.#producer = producer;
    this.#window = window;
    for (const stream of streams) [this.acknowledged[stream], this.unknown[stream]] = [[], []];
  }

  /** How many appends are sent and not acknowledged. */
  get pending() {
    return this.#unacknowledged.size;
  }

  /** Sends nothing new from now on. */
  stop() {
    this.#stopped = true;
  }

  open() {
    if (this.#producer) {
      for (const message of this.#unacknowledged.values()) this.send(message);
    } else {
      for (const { stream, data } of this.#unacknowledged.values()) this.unknown[stream].push(data);
      this.#unacknowledged.clear();
    }
    this.#fill();
  }

  receive(message) {
    if (message.type !== 'appended') return;
    const { stream, data } = this.#unacknowledged.get(message.id);
    this.#unacknowledged.delete(message.id);
    this.acknowledged[stream].push(data);
    this.#fill();
  }

  #fill() {
    while (!this.#stopped && this.#unacknowledged.size < this.#window) {
      const id = this.#next;
      this.#next += 1;
      const place = id % this.#streams.length;
      const data = (id - place) / this.#streams.length;
      const message = { type: 'append', id, stream: this.#streams[place], data };
      if (this.#producer) message.producer = { id: this.#producer, epoch: 0, seq: data };
      this.#unacknowledged.set(id, message);
      this.send(message);
    }
  }
}

/** A subscriber and appenders at one server, and what they say of themselves. */
export class Load {
  #subscriber;
  #appenders;

  constructor(WebSocket, url, { subscriptions, appenders }) {
    this.#subscriber = new Subscriber(WebSocket, url, subscriptions);
    this.#appenders = appenders.map((options) => new Appender(WebSocket, url, options));
  }

  /** How many records each subscription has, how often each client was connected, what is pending and what went wrong. */
  state() {
    const { records } = this.#subscriber;
    const all = [this.#subscriber, ...this.#appenders];
    return {
      counts: Object.fromEntries(Object.keys(records).map((name) => [name, records[name].length])),
      opened: all.map(({ opened }) => opened),
      pending: this.#appenders.map(({ pending }) => pending),
      errors: all.flatMap(({ errors }) => errors),
    };
  }

  /** The records of the subscriber, and what each appender knows of its appends. */
  results() {
    return {
      records: this.#subscriber.records,
      appenders: this.#appenders.map(({ acknowledged, unknown }) => ({ acknowledged, unknown })),
    };
  }

  stopAppends() {
    for (const appender of this.#appenders) appender.stop();
  }

  end() {
    for (const client of [this.#subscriber, ...this.#appenders]) client.end();
  }
}

/** The name that the server gives to a subscription. */
const nameOf = ({ stream, streams }) => stream ?? streams.join(',');
