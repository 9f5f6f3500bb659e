import { EnckeError } from './error.js';
import { lead } from './hub.js';
import { Inbox } from './inbox.js';
import type { Token } from './origin.js';
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

/** What this tab follows, by the hub of its group. */
export class Tab {
  readonly #id = crypto.randomUUID();
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
    const subscription = new TabSubscription<Message>(id, options, () => {
      if (this.#subscriptions.delete(id) && this.#isReady) this.#post({ type: 'leave', tab: this.#id, id, stream });
    });
    this.#subscriptions.set(id, subscription);
    if (this.#isReady) this.#post(subscription.want(this.#id));
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

/** Where the worker cannot be loaded, as in a bundle without it, one of the tabs is the hub. */
function startHub(group: string, base: string, isWanted = true): void {
  if (!isWanted || !globalThis.SharedWorker) return void lead(group, base);
  const url = new URL('./shared-worker.js', import.meta.url);
  const worker = new SharedWorker(url, { type: 'module', name: JSON.stringify({ group, base }) });
  worker.onerror = () => void lead(group, base);
}

/** A subscription of this tab. Its position goes with it from one hub to the next. */
class TabSubscription<Message = any> implements SharedSubscription<Message> {
  readonly closed: Promise<void>;
  endReason?: EndReason;

  readonly #id: number;
  readonly #options: SharedSubscribeOptions<Message>;
  readonly #leave: () => void;
  readonly #inbox = new Inbox<StreamRecord<Message>>();
  #settle!: (error?: unknown) => void;
  #offset?: string;
  #isOver = false;

  constructor(id: number, options: SharedSubscribeOptions<Message>, leave: () => void) {
    this.#id = id;
    this.#options = options;
    this.#leave = leave;
    this.closed = new Promise((resolve, reject) => (this.#settle = (error) => (error ? reject(error) : resolve())));
    if (!options.onRecord) this.closed.catch(() => {}); // The iteration throws it.
    options.signal?.addEventListener('abort', () => this.close(), { once: true });
  }

  [Symbol.asyncIterator](): AsyncGenerator<StreamRecord<Message>, void> {
    return this.#inbox.iterate(() => this.close());
  }

  close(): void {
    this.#inbox.clear();
    this.#finish();
  }

  want(tab: string): Want {
    const { stream, from, last } = this.#options;
    return { type: 'want', tab, id: this.#id, stream, from, last, offset: this.#offset };
  }

  receive(message: Exclude<HubMessage, { type: 'hello' | 'ask' }>): void {
    const { type } = message;
    if (type === 'state') return this.#options.onState?.(message.state);
    if (type === 'begin') return void (this.#offset ??= message.offset);
    if (streamOf(message) !== this.#options.stream) return;
    if (type === 'refused') return this.#finish(new EnckeError(message.status, message.code, message.message));
    if (this.#offset === undefined) return; // What is broadcast before it begins is for others.
    if (type === 'record') this.#record(message.record);
    else if (type === 'stop') this.#options.onStop?.(message.stream);
    else this.#end(message.end);
  }

  #record(record: StreamRecord<Message>): void {
    if (record.nextOffset <= this.#offset!) return;
    this.#offset = record.nextOffset;
    if (this.#options.onRecord) this.#options.onRecord(record);
    else this.#inbox.push(record);
  }

  #end(end: End): void {
    this.endReason = end.endReason;
    this.#options.onEnd?.(end);
    this.#finish();
  }

  #finish(error?: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#leave();
    this.#settle(error);
    this.#inbox.end(error);
  }
}

const streamOf = (message: Exclude<HubMessage, { type: 'hello' | 'ask' | 'state' | 'begin' }>): string =>
  message.type === 'record' ? message.record.stream : message.type === 'end' ? message.end.stream : message.stream;
