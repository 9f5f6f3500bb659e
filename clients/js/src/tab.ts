import { EnckeError } from './error.js';
import { Following } from './following.js';
import { lead } from './hub.js';
import { Inbox } from './inbox.js';
import type { Token } from './origin.js';
import { randomId } from './random-id.js';
import { holdLock, namesOf, type HubMessage, type TabMessage, type Want } from './tab-messages.js';
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
/** A worker that does not lead after this time is not there, or waits behind a tab that leads. */
const WORKER_MS_MAX = 10_000;

/** The subscriptions of this tab, which the hub of its group serves. */
export class Tab {
  readonly #id = randomId();
  readonly #subscriptions = new Map<number, TabSubscription>();
  readonly #broadcast: BroadcastChannel;
  /** The hub can learn of the end of this tab. */
  #isReady = false;
  #lastId = 0;

  constructor(group: string, base: string, { worker, token }: SharedSubscribeOptions) {
    const names = namesOf(group);
    this.#broadcast = new BroadcastChannel(names.broadcast);
    this.#broadcast.onmessage = ({ data }) => this.#receive(data as HubMessage, token);
    void holdLock(names.tabLock(this.#id)).then(() => {
      this.#isReady = true;
      for (const subscription of this.#subscriptions.values()) this.#post(subscription.want(this.#id));
      startHub(group, base, worker);
    });
  }

  subscribe<Message>(options: SharedSubscribeOptions<Message>): SharedSubscription<Message> {
    const id = ++this.#lastId;
    const { stream } = options;
    const leave = () => this.#isReady && this.#post({ type: 'leave', tab: this.#id, id, stream });
    const subscription = new TabSubscription<Message>(id, options, {
      join: () => this.#isReady && this.#post(subscription.want(this.#id)),
      leave,
      remove: () => this.#subscriptions.delete(id) && leave(),
    });
    this.#subscriptions.set(id, subscription);
    if (this.#isReady) this.#post(subscription.want(this.#id));
    if (options.signal?.aborted) subscription.close();
    return subscription;
  }

  #post(message: TabMessage): void {
    this.#broadcast.postMessage(message);
  }

  #receive(message: HubMessage, token?: Token): void {
    if (message.type === 'ask') return void this.#sayToken(message.ask, token);
    for (const [id, subscription] of [...this.#subscriptions]) {
      if (message.type === 'hello') {
        if (this.#isReady) this.#post(subscription.want(this.#id));
      } else if (!('to' in message) || !message.to || (message.to.tab === this.#id && message.to.id === id)) {
        subscription.receive(message);
      }
    }
  }

  async #sayToken(ask: string, token?: Token): Promise<void> {
    try {
      this.#post({ type: 'token', ask, token: typeof token === 'function' ? await token() : token });
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
  const worker = new SharedWorker(url, { type: 'module', name: JSON.stringify({ group, base }) });
  worker.onerror = wait;
  worker.port.onmessage = wait; // It leads.
  setTimeout(wait, WORKER_MS_MAX);
}

interface TabAccess {
  join: () => void;
  leave: () => void;
  remove: () => void;
}

/** A subscription of this tab, which one hub after the other serves. */
class TabSubscription<Message = any> extends Following<Message> implements SharedSubscription<Message> {
  readonly #id: number;
  readonly #options: SharedSubscribeOptions<Message>;
  readonly #tab: TabAccess;
  readonly #abort = () => this.close();
  /** The offset behind the last record that was received. */
  #received?: string;
  /** The hub has begun to send everything behind `#received`. Broadcasts before that are for other tabs. */
  #isAdmitted = false;
  /** The subscription has left the hub until no record waits. */
  #isPaused = false;
  #waiting = 0;
  #isOver = false;
  readonly #inbox = new Inbox<StreamRecord<Message> | End, StreamRecord<Message>>({
    open: (item) => ('why' in item ? this.#end(item) : this.#open(item)),
    onEmpty: () => this.#isPaused && this.#resume(),
    onLeave: () => this.close(),
    onError: (error) => this.#finish(error),
  });

  constructor(id: number, options: SharedSubscribeOptions<Message>, tab: TabAccess) {
    const { onRecord, signal } = options;
    super(options);
    this.#id = id;
    this.#options = options;
    this.#tab = tab;
    if (onRecord) void this.#inbox.deliver(onRecord);
    signal?.addEventListener('abort', this.#abort);
  }

  [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void> {
    return this.iterate(this.#inbox.entries());
  }

  close(): void {
    this.#finish();
  }

  want(tab: string): Want {
    this.#isAdmitted = false;
    const { stream, from, last } = this.#options;
    return { type: 'want', tab, id: this.#id, stream, from, last, offset: this.#received };
  }

  receive(message: Exclude<HubMessage, { type: 'hello' | 'ask' }>): void {
    const { type } = message;
    if (type === 'state') return this.#options.onState?.(message.state);
    if (this.#isPaused) return;
    if (type === 'begin') {
      this.#isAdmitted = true;
      this.#received ??= message.offset;
      this.position ??= message.offset;
      return;
    }
    if (streamOf(message) !== this.#options.stream) return;
    if (type === 'refused') return this.#finish(new EnckeError(message.status, message.code, message.message));
    if (!this.#isAdmitted) return;
    if (type === 'record') this.#record(message.record);
    else if (type === 'stop') this.#options.onStop?.(message.stream);
    else if (type === 'end') this.#inbox.push(message.end); // Messages of other tabs come here, too.
  }

  #record(record: StreamRecord<Message>): void {
    if (record.nextOffset <= this.#received!) return;
    if (this.#waiting === WAITING_RECORDS_MAX) {
      this.#isPaused = true;
      return this.#tab.leave();
    }
    this.#received = record.nextOffset;
    this.#waiting += 1;
    this.#inbox.push(record);
  }

  #open(record: StreamRecord<Message>): StreamRecord<Message> {
    this.#waiting -= 1;
    this.position = record.nextOffset;
    return record;
  }

  #resume(): void {
    this.#isPaused = false;
    this.#received = this.position;
    this.#tab.join();
  }

  #end(end: End): undefined {
    this.noteEnd(end);
    this.#finish();
  }

  #finish(error?: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#options.signal?.removeEventListener('abort', this.#abort);
    this.#tab.remove();
    this.settle(error);
    this.#inbox.end(error);
  }
}

const streamOf = (message: Exclude<HubMessage, { type: 'hello' | 'ask' | 'state' | 'begin' }>): string =>
  message.type === 'record' ? message.record.stream : message.type === 'end' ? message.end.stream : message.stream;
