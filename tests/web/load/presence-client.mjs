// A client in presence channels of the Pusher protocol. It connects again when its connection ends, and replays what the server says of the members.

import { PusherConnection } from './pusher-connection.mjs';

/** How long a connection may take until all subscriptions are confirmed, before the client tries another one: as pusher-js waits for a WebSocket. */
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

export class PresenceClient {
  #app;
  #choose;
  #delay;
  #comesBack;
  #sightings;
  #connection;
  #timer;
  #refusal;
  #isGone = false;

  user;
  channels;
  /** The members of each channel that has been confirmed, by their ids. */
  rosters = new Map();
  /** The address of the server that it is connected to, or tries to connect to. */
  address;

  /**
   * A client that is not connected yet. `choose`: returns the address of the next connection. `delay`: returns the milliseconds between the loss of a connection
   * and the next one. `comesBack`: called when a connection is lost; returns false if the client does not connect again.
   */
  constructor({ app, user, channels, choose, delay = () => 1_000, comesBack = () => true, sightings }) {
    this.#app = app;
    this.#choose = choose;
    this.#delay = delay;
    this.#comesBack = comesBack;
    this.#sightings = sightings;
    this.user = user;
    this.channels = channels;
  }

  /** All its channels are confirmed. */
  get isConfirmed() {
    return this.rosters.size === this.channels.length;
  }

  connect() {
    this.address = this.#choose();
    const connection = new PusherConnection({
      address: this.address,
      key: this.#app.key,
      onMessage: (message) => this.#take(message),
      onEnd: (code) => this.#ended(code),
    });
    this.#connection = connection;
    this.#timer = setTimeout(() => {
      this.#refusal = `not confirmed within ${CONFIRM_MS_MAX} ms`;
      connection.hangUp();
    }, CONFIRM_MS_MAX);
  }

  /** Hangs up, and does not connect again. */
  leave({ reset } = {}) {
    this.#isGone = true;
    this.rosters.clear();
    clearTimeout(this.#timer);
    this.#connection?.hangUp({ reset });
  }

  #take({ event, channel, data }) {
    if (this.#isGone) return;
    if (event === 'pusher:connection_established') {
      const { socket_id: socketId } = JSON.parse(data);
      for (const name of this.channels) {
        this.#connection.send({ event: 'pusher:subscribe', data: this.#app.subscription(socketId, name, this.user) });
      }
    } else if (event === 'pusher_internal:subscription_succeeded') {
      const { ids, count } = JSON.parse(data).presence;
      const roster = new Set(ids);
      if (roster.size !== ids.length || count !== ids.length) this.#contradict(channel, 'a list has a member twice');
      if (!roster.has(this.user)) this.#contradict(channel, 'a list lacks the client itself');
      this.rosters.set(channel, roster);
      if (this.isConfirmed) clearTimeout(this.#timer);
    } else if (event === 'pusher_internal:member_added') {
      const { user_id: id } = JSON.parse(data);
      this.#sightings.events++;
      if (this.#roster(channel).has(id)) this.#contradict(channel, `${id} is added twice`);
      this.#roster(channel).add(id);
    } else if (event === 'pusher_internal:member_removed') {
      const { user_id: id } = JSON.parse(data);
      this.#sightings.events++;
      if (!this.#roster(channel).delete(id)) this.#contradict(channel, `${id} is removed and was not there`);
    } else {
      // Such as pusher:subscription_error. An application tries again after a while.
      this.#refusal = `${event} ${JSON.stringify(data)}`;
      this.#connection.hangUp();
    }
  }

  #roster(channel) {
    const roster = this.rosters.get(channel);
    if (!roster) throw new Error(`a change of ${channel} comes before its list`);
    return roster;
  }

  #contradict(channel, what) {
    this.#sightings.contradict(`${this.user} at ${this.address} in ${channel}: ${what}`);
  }

  /** Comes back as pusher-js does: at once if the server says so by a code of 4200 to 4299, and otherwise after a second. */
  #ended(code) {
    clearTimeout(this.#timer);
    if (this.#isGone) return;
    this.#sightings.ended(this.#refusal ?? (code === undefined ? 'lost' : `closed with ${code}`));
    const isAtOnce = code >= 4_200 && code < 4_300 && this.#refusal === undefined;
    this.#refusal = undefined;
    this.rosters.clear();
    if (!this.#comesBack()) {
      this.#isGone = true;
      return;
    }
    this.#timer = setTimeout(() => this.connect(), isAtOnce ? 0 : this.#delay());
  }
}
