// The members according to the connections that are open and confirmed, and how long it takes until all servers and clients know exactly them.

import { wait } from './process.mjs';

/** How long it must stay exact: longer than the silence after which other nodes drop the members of a node. */
const STAYS_MS = 4_000;
/** How long clients may take to be confirmed. */
const CONFIRM_MS_MAX = 60_000;
/** How often a list is requested that gets no answer. */
const TRIES = 3;
/** Requests for lists at a time. */
const REQUESTS = 32;

/** The members of each channel that the confirmed clients are. */
function membersByChannel(clients, channels) {
  const members = new Map(channels.map((channel) => [channel, new Set()]));
  for (const client of clients) {
    for (const channel of client.joined) members.get(channel).add(client.user);
  }
  return members;
}

/**
 * Waits until all clients are confirmed, every client knows exactly the members of its channels, and every address lists exactly them;
 * and checks that it stays so. `directory`: its `users(address, channel)` requests a list, and it counts requests without an answer, `unanswered`. `clients` and
 * `addresses`: those that should be there. No member may join or leave meanwhile. `msMax`: how long it may be otherwise once all clients are confirmed.
 *
 * Returns `times`, the milliseconds from the call until all clients were confirmed, until they knew the members, and until the addresses listed them
 * (undefined: never); and `wrong`, what was wrong at the end (undefined: nothing).
 */
export async function waitUntilExact({ directory, addresses, channels, clients, msMax }) {
  const begin = performance.now();
  const elapsed = () => performance.now() - begin;
  const times = { confirmed: undefined, clients: undefined, servers: undefined };
  const lists = addresses.flatMap((address) => channels.map((channel) => ({ address, channel })));
  const isInTime = () => elapsed() < (times.confirmed === undefined ? CONFIRM_MS_MAX : times.confirmed + msMax);
  let wrong;
  while (isInTime()) {
    wrong = unconfirmed(clients());
    if (wrong.length > 0) {
      times.confirmed = times.clients = undefined;
      await wait(20);
      continue;
    }
    times.confirmed ??= elapsed();
    const members = membersByChannel(clients(), channels);
    wrong = wrongClients(clients(), members);
    if (wrong.length > 0) {
      times.clients = undefined;
      await wait(50);
      continue;
    }
    times.clients ??= elapsed();
    wrong = await wrongLists(directory, lists, members, () => isInTime() && clients().every((client) => client.isConfirmed));
    if (wrong.length > 0) continue;
    times.servers = elapsed();
    if (!isInTime()) wrong.push(`all was exact only ${(times.servers - times.confirmed).toFixed(0)} ms after the clients were confirmed`);
    await wait(STAYS_MS);
    const later = [...wrongClients(clients(), members), ...(await wrongLists(directory, lists, members))];
    return { times, wrong: inWords([...wrong, ...later.map((what) => `${STAYS_MS} ms after all was exact: ${what}`)]) };
  }
  const members = membersByChannel(clients(), channels);
  const inLists = await wrongLists(directory, lists, members);
  return { times, wrong: `${inWords(wrong)}; ${inLists.length} wrong lists of servers` };
}

/** How many things are wrong, and the first of them. */
function inWords(wrong) {
  return wrong.length === 0 ? undefined : `${wrong.length} times, such as: ${wrong.slice(0, 5).join('; ')}`;
}

function unconfirmed(clients) {
  return clients.filter((client) => !client.isConfirmed).map((client) => `${client.user} at ${client.address} is not confirmed`);
}

/** The clients that know other members, in words. */
function wrongClients(clients, members) {
  return clients.flatMap((client) => {
    const wrong = client.channels.flatMap((channel) => difference(client.rosters.get(channel) ?? new Set(), members.get(channel)) ?? []);
    return wrong.length === 0 ? [] : [`${client.user} at ${client.address}: ${wrong[0]}`];
  });
}

/** The lists of servers that are wrong, in words. While `mayRepeat` returns true, a wrong list is requested again. */
async function wrongLists(directory, lists, members, mayRepeat = () => false) {
  const wrong = [];
  const waiting = [...lists];
  const ask = async () => {
    for (let list = waiting.pop(); list; list = waiting.pop()) {
      const problem = await wrongList(directory, list, members);
      if (problem && mayRepeat()) {
        waiting.unshift(list);
        await wait(20);
      } else if (problem) {
        wrong.push(problem);
      }
    }
  };
  await Promise.all(Array.from({ length: REQUESTS }, ask));
  return wrong;
}

async function wrongList(directory, { address, channel }, members) {
  const { ids, unanswered } = await requestList(directory, address, channel);
  if (unanswered) return `${channel} at ${address}: ${unanswered}`;
  const listed = new Set(ids);
  const problem = listed.size === ids.length ? difference(listed, members.get(channel)) : 'a member is listed twice';
  return problem && `${channel} at ${address}: ${problem}`;
}

/** A list. A request without an answer says nothing about the list, and is repeated. */
async function requestList(directory, address, channel) {
  let unanswered;
  for (let tries = 0; tries < TRIES; tries++) {
    try {
      return { ids: await directory.users(address, channel) };
    } catch (error) {
      directory.unanswered++;
      unanswered = error.message;
    }
  }
  return { unanswered };
}

/** How known members differ from those who are there; undefined if they do not. */
function difference(known, members) {
  const missing = [...members].filter((id) => !known.has(id));
  if (missing.length === 0 && known.size === members.size) return undefined;
  const extra = [...known].filter((id) => !members.has(id));
  return `${known.size} members instead of ${members.size}, missing ${missing.slice(0, 3)}, too many ${extra.slice(0, 3)}`;
}
