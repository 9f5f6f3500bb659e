// A client that connects again when its connection ends, and what all clients of a run saw.

/** How long a client may take until it is confirmed, before it tries another connection: as pusher-js waits for a WebSocket. */
const CONFIRM_MS_MAX = 15_000;

/** What all clients saw. */
export class Sightings {
  /** Changes of members that reached clients. */
  events = 0;
  /** Changes that contradict what a client knew, such as a member added twice: the first of them in words. */
  contradictions = [];
  contradictionCount = 0;
  /** Connections that were lost or refused, by the reason. */
  ends = new Map();

  contradict(what) {
    this.contradictionCount++;
    if (this.contradictions.length < 20) this.contradictions.push(what);
  }

  ended(reason) {
    this.ends.set(reason, (this.ends.get(reason) ?? 0) + 1);
  }

  /** The lost and refused connections since the last call, in words. */
  takeEnds() {
    const text = [...this.ends].map(([reason, count]) => `${count} × ${reason}`).join(', ');
    this.ends.clear();
    return text || 'none';
  }
}

/**
 * Classes that extend it have `open(onEnd)`, which returns a connection with `hangUp({ reset })`, calls `confirmed()` when the server has said all, and
 * `onEnd(code)` once; `forget()` of what a connection has said; and `isConfirmed`.
 */
export class ReturningClient {
  #choose;
  #delay;
  #comesBack;
  #connection;
  #timer;
  #refusal;

  user;
  sightings;
  isGone = false;
  /** The address of the server that it is connected to, or tries to connect to. */
  address;

  /**
   * A client that is not connected yet. `choose`: returns the address of the next connection. `delay`: returns the milliseconds between the loss of a connection
   * and the next one. `comesBack`: called when a connection is lost; returns false if the client does not connect again.
   */
  constructor({ user, choose, delay = () => 1_000, comesBack = () => true, sightings }) {
    this.#choose = choose;
    this.#delay = delay;
    this.#comesBack = comesBack;
    this.user = user;
    this.sightings = sightings;
  }

  connect() {
    this.address = this.#choose();
    this.#timer = setTimeout(() => this.refuse(`not confirmed within ${CONFIRM_MS_MAX} ms`), CONFIRM_MS_MAX);
    this.#connection = this.open((code) => this.#ended(code));
  }

  /** Hangs up, and does not connect again. */
  leave({ reset } = {}) {
    this.isGone = true;
    this.forget();
    clearTimeout(this.#timer);
    this.#connection?.hangUp({ reset });
  }

  confirmed() {
    clearTimeout(this.#timer);
  }

  /** The server has refused what the client wants. It tries again after a while, as an application does. */
  refuse(reason) {
    this.#refusal = reason;
    this.#connection.hangUp();
  }

  contradict(where, what) {
    this.sightings.contradict(`${this.user} at ${this.address} in ${where}: ${what}`);
  }

  /** Comes back as pusher-js does: at once if the server says so by a code of 4200 to 4299, and otherwise after the delay. */
  #ended(code) {
    clearTimeout(this.#timer);
    if (this.isGone) return;
    this.sightings.ended(this.#refusal ?? (code === undefined ? 'lost' : `ended with ${code}`));
    const isAtOnce = code >= 4_200 && code < 4_300 && this.#refusal === undefined;
    this.#refusal = undefined;
    this.forget();
    if (!this.#comesBack()) {
      this.isGone = true;
      return;
    }
    this.#timer = setTimeout(() => this.connect(), isAtOnce ? 0 : this.#delay());
  }
}
