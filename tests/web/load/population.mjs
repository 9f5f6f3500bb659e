// Members that join and leave, and clients that follow all of them at one node.

import { hundreds, wait } from './process.mjs';
import { Sightings } from './returning-client.mjs';

/** Every tenth member has two connections. */
const SECOND_CONNECTION_EVERY = 10;
/** The share of clients that do not come back when their node ends. */
const LOST_SHARE = 0.05;
const ENTER_MS_MAX = 60_000;
/** How often changes are made. */
const TICK_MS = 10;

export class Population {
  #member;
  #follower;
  #choose;
  /** The clients of each member, by its number; the oldest first. */
  #members = new Map();
  #followers = new Map();
  #next = 0;
  #ticks;
  #resumed;
  #losing;

  sightings = new Sightings();
  /** Members that were replaced, and for how long members were replaced. */
  changes = 0;
  changingMs = 0;

  /**
   * `member` and `follower` make clients: they get a number, and the options of `ReturningClient`. `choose`: returns the address of a node for a new
   * connection, other than the address that it gets.
   */
  constructor({ member, follower, choose }) {
    this.#member = member;
    this.#follower = follower;
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
    const client = this.#member(number, {
      user: `user-${number}`,
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
    const begin = (this.#resumed = performance.now());
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
    if (this.#resumed) this.changingMs += performance.now() - this.#resumed;
    this.#resumed = undefined;
  }

  /** Of the clients that lose their connection to this address, a share does not come back. */
  loses(address) {
    this.#losing = address;
  }

  /** Adds a client that follows all members at a node. */
  follow(address) {
    const user = `follower-${address.split(':')[1]}`;
    const follower = this.#follower({ user, choose: () => address, sightings: this.sightings });
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
