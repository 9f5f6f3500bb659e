// A client in presence channels of the Pusher protocol. It replays what the server says of the members.

import { PusherConnection } from './pusher-connection.mjs';
import { ReturningClient } from './returning-client.mjs';

export class PresenceClient extends ReturningClient {
  #app;
  #connection;

  channels;
  /** The members of each channel that has been confirmed, by their ids. */
  rosters = new Map();

  constructor({ app, channels, ...options }) {
    super(options);
    this.#app = app;
    this.channels = channels;
  }

  /** All its channels are confirmed. */
  get isConfirmed() {
    return this.rosters.size === this.channels.length;
  }

  /** The channels that have it as a member. */
  get joined() {
    return this.rosters.keys();
  }

  open(onEnd) {
    this.#connection = new PusherConnection({
      address: this.address,
      key: this.#app.key,
      onMessage: (message) => this.#take(message),
      onEnd,
    });
    return this.#connection;
  }

  forget() {
    this.rosters.clear();
  }

  #take({ event, channel, data }) {
    if (this.isGone) return;
    if (event === 'pusher:connection_established') {
      const { socket_id: socketId } = JSON.parse(data);
      for (const name of this.channels) {
        this.#connection.send({ event: 'pusher:subscribe', data: this.#app.subscription(socketId, name, this.user) });
      }
    } else if (event === 'pusher_internal:subscription_succeeded') {
      const { ids, count } = JSON.parse(data).presence;
      const roster = new Set(ids);
      if (roster.size !== ids.length || count !== ids.length) this.contradict(channel, 'a list has a member twice');
      if (!roster.has(this.user)) this.contradict(channel, 'a list lacks the client itself');
      this.rosters.set(channel, roster);
      if (this.isConfirmed) this.confirmed();
    } else if (event === 'pusher_internal:member_added') {
      const { user_id: id } = JSON.parse(data);
      this.sightings.events++;
      if (this.#roster(channel).has(id)) this.contradict(channel, `${id} is added twice`);
      this.#roster(channel).add(id);
    } else if (event === 'pusher_internal:member_removed') {
      const { user_id: id } = JSON.parse(data);
      this.sightings.events++;
      if (!this.#roster(channel).delete(id)) this.contradict(channel, `${id} is removed and was not there`);
    } else {
      // Such as pusher:subscription_error.
      this.refuse(`${event} ${JSON.stringify(data)}`);
    }
  }

  #roster(channel) {
    const roster = this.rosters.get(channel);
    if (!roster) throw new Error(`a change of ${channel} comes before its list`);
    return roster;
  }
}
