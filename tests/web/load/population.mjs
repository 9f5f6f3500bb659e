// Members that join and leave, each in one channel, and clients that follow all channels at one node.

import { PresenceClient, Sightings } from './presence-client.mjs';
import { hundreds, wait } from './process.mjs';

/** Every tenth member has two connections. */
const SECOND_CONNECTION_EVERY = 10;
/** The share of clients that do not come back when their node ends. */
const LOST_SHARE = 0.05;
const ENTER_MS_MAX = 60_000;
/** How often changes are made. */
const TICK_MS = 10;

export class Population {
  #app;
  #channels;
  #choose;
  /** The clients of each member, by its number; the oldest first. */
  #members = new Map();
  #followers = new Map();
  #next = 0;
  #ticks;
  #losing;

  sightings = new Sightings();
  /** Members that were replaced. */
  changes = 0;

  /** `choose`: returns the address of a node for a new connection, other than the address that it gets. */
  constructor({ app, channels, choose }) {
    this.#app = app;
    this.#channels = channels;
    this.#choose = choose;
  }

  get members() {
    return this.#members.size;
  }

  /** All clients that are connected or will be. */
  get clients() {
    return [...this.#members.values(), [...this.#followers.values()]].flat();
  }

  /** A new member. */
  #enter() {
    const number = this.#next++;
    const clients = [this.#client(number)];
    if (number % SECOND_CONNECTION_EVERY === 0) clients.push(this.#client(number, clients));
    this.#members.set(number, clients);
    for (const client of clients) client.connect();
    return clients;
  }

  #client(number, others = []) {
    const client = new PresenceClient({
      app: this.#app,
      user: `user-${number}`,
      channels: [this.#channels[number % this.#channels.length]],
      // The node differs from that of the member's other connection, and from the one that was lost.
      choose: () => this.#choose(others[0]?.address ?? client.address),
      comesBack: () => this.#comesBack(number, client),
      sightings: this.sightings,
    });
    return client;
  }

  #comesBack(number, client) {
    if (client.address !== this.#losing || Math.random() >= LOST_SHARE) return true;
    this.#remove(number);
    return false;
  }

  /** Ends the connections of a member, those of every second member by a reset. */
  #remove(number) {
    for (const client of this.#members.get(number) ?? []) client.leave({ reset: number % 2 === 0 });
    this.#members.delete(number);
  }

  /** Brings members, and waits until they are confirmed. */
  async enter(count) {
    await hundreds(count, async () => {
      const clients = this.#enter();
      for (const end = performance.now() + ENTER_MS_MAX; performance.now() < end && !clients.every((client) => client.isConfirmed); ) await wait(10);
    });
  }

  /** Replaces that many members per second, and adds others until there are `count`. */
  resume(rate, count) {
    this.pause();
    const begin = performance.now();
    let made = 0;
    this.#ticks = setInterval(() => {
      for (const due = ((performance.now() - begin) / 1_000) * rate; made < due; made++) {
        const [oldest] = this.#members.keys();
        this.#remove(oldest);
        this.#enter();
        this.changes++;
        if (this.#members.size < count) this.#enter();
      }
    }, TICK_MS);
  }

  pause() {
    clearInterval(this.#ticks);
  }

  /** Of the clients that lose their connection to this address, a share does not come back. */
  loses(address) {
    this.#losing = address;
  }

  /** Adds a client that follows all channels at a node. */
  follow(address) {
    const user = `follower-${address.split(':')[1]}`;
    const follower = new PresenceClient({ app: this.#app, user, channels: this.#channels, choose: () => address, sightings: this.sightings });
    this.#followers.set(address, follower);
    follower.connect();
  }

  unfollow(address) {
    this.#followers.get(address)?.leave();
    this.#followers.delete(address);
  }

  leave() {
    this.pause();
    for (const client of this.clients) client.leave();
  }
}
