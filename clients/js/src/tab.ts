import { EnckeError } from './error.js';
import { Following } from './following.js';
import { lead } from './hub.js';
import { Inbox } from './inbox.js';
import { notify } from './notify.js';
import { type Token, tokenOf } from './origin.js';
import { randomId } from './random-id.js';
import { holdLock, namesOf, type Address, type HubMessage, type TabMessage } from './tab-messages.js';
import type { End, EndReason, From, StreamRecord, SubscriberCallbacks } from './types.js';

export interface SharedSubscribeOptions<Message = any> extends Omit<SubscriberCallbacks<Message>, 'onGap'> {
  /** The name of a stream. */
  stream: string;
  /** Where to begin; `now` by default. */
  from?: From;
  /** Begin so many messages before the end, in place of `from`. */
  last?: number;
  /** Where the server is; the origin of the page by default. */
  base?: string | URL;
  /** Asked in one of the tabs when the connection needs a token. All tabs of a group are one caller. */
  token?: Token;
  /** Tabs of another group have another connection: name the user if a browser may have several. */
  group?: string;
  /** False: a tab has the connection, although there are SharedWorkers. */
  worker?: boolean;
  signal?: AbortSignal;
}

export interface SharedSubscription<Message = any> extends AsyncIterable<StreamRecord<Message>> {
  /** Resolves when the stream has ended or `close()` was called; rejects if the server refuses the subscription. */
  readonly closed: Promise<void>;
  readonly endReason?: EndReason;
  close(): void;
}

/** The most records that wait for the consumer of a tab. */
export const WAITING_RECORDS_MAX = 10_000;
/** The most characters of their data, unless a single record has more. */
export const WAITING_CHARS_MAX = 4 * 2 ** 20;
/** A worker that does not lead after this time is not there, or waits behind a tab that leads. */
const WORKER_MS_MAX = 10_000;

/** The subscriptions of this tab, which the hub of its group serves. */
export class Tab {
  readonly #id = randomId();
  readonly #subscriptions = new Map<number, TabSubscription>();
  readonly #broadcast: BroadcastChannel;
  /** Resolves when the hub can learn of the end of this tab, and rejects where the page may have no lock. */
  readonly #ready: Promise<void>;
  #lastId = 0;

  constructor(group: string, base: string, { worker, token }: SharedSubscribeOptions) {
    const names = namesOf(group);
    this.#broadcast = new BroadcastChannel(names.broadcast);
    this.#broadcast.onmessage = ({ data }) => this.#receive(data as HubMessage, token);
    this.#ready = holdLock(names.tabLock(this.#id)).then(() => startHub(group, base, worker));
  }

  subscribe<Message>(options: SharedSubscribeOptions<Message>): SharedSubscription<Message> {
    const id = ++this.#lastId;
    const subscription = new TabSubscription<Message>({ tab: this.#id, id }, options, {
      post: (message) => this.#post(message),
      remove: () => this.#subscriptions.delete(id),
    });
    this.#subscriptions.set(id, subscription);
    if (options.signal?.aborted) subscription.close();
    this.#ready.then(
      () => subscription.join(),
      (error) => subscription.finish(error),
    );
    return subscription;
  }

  #post(message: TabMessage): void {
    this.#broadcast.postMessage(message);
  }

  #receive(message: HubMessage, token?: Token): void {
    if (message.type === 'ask') return void this.#answer(message.ask, token);
    for (const [id, subscription] of [...this.#subscriptions]) {
      if (message.type === 'hello') subscription.rejoin();
      else if (!('to' in message) || !message.to || (message.to.tab === this.#id && message.to.id === id)) subscription.receive(message);
    }
  }

  async #answer(ask: string, token?: Token): Promise<void> {
    try {
      this.#post({ type: 'token', ask, token: await tokenOf(token) });
    } catch {
      // Another tab may get one.
    }
  }
}

/**
 * The worker leads first, if it can be loaded, and the tabs wait for its lock. So one of them leads when the worker ends, as with the first tab
 * in some browsers, and another one when that tab ends.
 */
function startHub(group: string, base: string, isWanted = true): void {
  let isWaiting = false;
  const wait = () => {
    if (isWaiting) return;
    isWaiting = true;
    void lead(group, base);
  };
  if (!isWanted || !globalThis.SharedWorker) return wait();
  const url = new URL('./shared-worker.js', import.meta.url);
  try {
    const worker = new SharedWorker(url, { type: 'module', name: JSON.stringify({ group, base }) });
    worker.onerror = wait;
    worker.port.onmessage = wait; // It leads.
  } catch {
    return wait(); // The script is of another origin, or a policy of the page refuses it.
  }
  setTimeout(wait, WORKER_MS_MAX);
}

interface TabAccess {
  post: (message: TabMessage) => void;
  remove: () => void;
}

interface Waiting<Message> {
  item: StreamRecord<Message> | End;
  chars: number;
}

/** A subscription of this tab, which one hub after the other serves. */
class TabSubscription<Message = any> extends Following<Message> implements SharedSubscription<Message> {
  readonly #address: Address;
  readonly #options: SharedSubscribeOptions<Message>;
  readonly #tab: TabAccess;
  readonly #abort = () => this.close();
  /** The offset behind the last record that was received. */
  #received?: string;
  /**
   * `new` until the tab is ready. `joining` until the hub has begun to send everything behind `#received`: broadcasts before that are for other
   * tabs. `paused`: it has left the hub until no record waits.
   */
  #state: 'new' | 'joining' | 'live' | 'paused' | 'over' = 'new';
  #waiting = 0;
  #waitingChars = 0;
  readonly #inbox = new Inbox<Waiting<Message>, StreamRecord<Message>>({
    open: ({ item, chars }) => ('why' in item ? this.#end(item) : this.#open(item, chars)),
    onEmpty: () => this.#state === 'paused' && this.#join(),
    onLeave: () => this.close(),
    onError: (error) => this.finish(error),
  });

  constructor(address: Address, options: SharedSubscribeOptions<Message>, tab: TabAccess) {
    const { onRecord, signal } = options;
    super(options);
    this.#address = address;
    this.#options = options;
    this.#tab = tab;
    if (onRecord) void this.#inbox.deliver(onRecord);
    signal?.addEventListener('abort', this.#abort);
  }

  [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void> {
    return this.iterate(this.#inbox.entries());
  }

  close(): void {
    this.finish();
  }

  /** The tab is ready. */
  join(): void {
    if (this.#state === 'new') this.#join();
  }

  /** There is another hub. A paused subscription joins it when no record waits. */
  rejoin(): void {
    if (this.#state === 'joining' || this.#state === 'live') this.#join();
  }

  receive(message: Exclude<HubMessage, { type: 'hello' | 'ask' }>): void {
    const { type } = message;
    if (type === 'state') return notify(this.#options.onState, message.state);
    if (this.#state === 'paused') return;
    if (type === 'begin') {
      this.#state = 'live';
      this.#received ??= message.offset;
      this.position ??= message.offset;
      return;
    }
    if (streamOf(message) !== this.#options.stream) return;
    if (type === 'refused') return this.finish(new EnckeError(message.status, message.code, message.message));
    if (this.#state !== 'live') return;
    if (type === 'record') this.#record(message.record, message.chars);
    else if (type === 'stop') notify(this.#options.onStop, message.stream);
    else if (type === 'end') this.#inbox.push({ item: message.end, chars: 0 }); // Messages of other tabs come here, too.
  }

  /** Ends the subscription, with an error or without. */
  finish(error?: unknown): void {
    if (this.#state === 'over') return;
    if (this.#state !== 'new') this.#leave();
    this.#state = 'over';
    this.#options.signal?.removeEventListener('abort', this.#abort);
    this.#tab.remove();
    this.settle(error);
    this.#inbox.end(error);
  }

  #join(): void {
    this.#state = 'joining';
    const { stream, from, last } = this.#options;
    this.#tab.post({ type: 'want', ...this.#address, stream, from, last, offset: this.#received });
  }

  #leave(): void {
    this.#tab.post({ type: 'leave', ...this.#address, stream: this.#options.stream });
  }

  #record(record: StreamRecord<Message>, chars = 0): void {
    if (record.nextOffset <= this.#received!) return;
    if (this.#waiting === WAITING_RECORDS_MAX || (this.#waiting && this.#waitingChars + chars > WAITING_CHARS_MAX)) {
      this.#state = 'paused';
      return this.#leave();
    }
    this.#received = record.nextOffset;
    this.#waiting += 1;
    this.#waitingChars += chars;
    this.#inbox.push({ item: record, chars });
  }

  #open(record: StreamRecord<Message>, chars: number): StreamRecord<Message> {
    this.#waiting -= 1;
    this.#waitingChars -= chars;
    this.position = record.nextOffset;
    return record;
  }

  #end(end: End): undefined {
    this.noteEnd(end);
    this.finish();
  }
}

const streamOf = (message: Exclude<HubMessage, { type: 'hello' | 'ask' | 'state' | 'begin' }>): string =>
  message.type === 'record' ? message.record.stream : message.type === 'end' ? message.end.stream : message.stream;
