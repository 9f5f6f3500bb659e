import type { Channel } from './channel.js';
import type { ChannelSubscription, ChannelSubscribeOptions } from './channel-subscription.js';
import type { EnckeError } from './error.js';
import type { HubMessage, Want } from './tab-messages.js';
import type { End, StreamRecord } from './types.js';

/** Records that a hub keeps for tabs that come later, instead of reading them again. */
const RECENT_RECORDS_MAX = 1_000;

export interface HubStreamOptions {
  channel: () => Channel;
  post: (message: HubMessage) => void;
  /** The server has refused the subscription, and all tabs know it. */
  onRefused: () => void;
}

/** A stream that tabs follow, by one subscription of the hub's channel. */
export class HubStream {
  readonly #stream: string;
  readonly #options: HubStreamOptions;
  readonly #wants = new Set<string>();
  /** Subscriptions of tabs are admitted one after the other. */
  #admission: Promise<void> = Promise.resolve();
  #subscription?: ChannelSubscription;
  /** Everything between `#start` and `#position`, which is known when the subscription has begun. */
  #recent: StreamRecord[] = [];
  #start = '';
  #position?: string;
  #end?: End;

  constructor(stream: string, options: HubStreamOptions) {
    this.#stream = stream;
    this.#options = options;
  }

  add(key: string, want: Want): void {
    if (this.#wants.has(key)) return;
    this.#wants.add(key);
    this.#admission = this.#admission.then(() => this.#admit(key, want)).catch((error) => this.#refuse(error));
  }

  /** Removes subscriptions of tabs; true if none is left. */
  remove(isLeaving: (key: string) => boolean): boolean {
    for (const key of this.#wants) if (isLeaving(key)) this.#wants.delete(key);
    return this.#wants.size === 0;
  }

  close(): void {
    this.#wants.clear();
    this.#subscription?.close();
  }

  async #admit(key: string, { tab, id, offset, from, last }: Want): Promise<void> {
    if (!this.#wants.has(key)) return;
    const to = { tab, id };
    const start = offset ?? (last === undefined ? (from ?? 'now') : undefined);
    const begin = this.#recentFrom(start, last);
    if (begin) {
      this.#options.post({ type: 'begin', to, offset: begin.offset });
      for (const record of begin.records) this.#options.post({ type: 'record', to, record });
      if (this.#end) this.#options.post({ type: 'end', to, end: this.#end });
      return;
    }
    const before = this.#position;
    const begun = await this.#subscribe(start === undefined ? { last } : { from: start });
    this.#options.post({ type: 'begin', to, offset: begun });
    // It may have been broadcast before the tab was admitted.
    if (this.#end) this.#options.post({ type: 'end', to, end: this.#end });
    // The other tabs are further back than this one.
    if (before !== undefined && begun > before) await this.#subscribe({ from: before });
  }

  /** Where a subscription begins by what is here, and the records behind it; nothing if they must be read. */
  #recentFrom(start: string | undefined, last = 0): { offset: string; records: StreamRecord[] } | undefined {
    const position = this.#position;
    if (position === undefined) return;
    const hasAll = this.#start === '-1';
    if (start === 'now') return { offset: position, records: [] };
    if (start === '-1') return hasAll ? { offset: start, records: this.#recent } : undefined;
    if (start !== undefined) {
      if (!hasAll && start < this.#start) return;
      return { offset: start, records: this.#recent.filter((record) => record.nextOffset > start) };
    }
    const records: StreamRecord[] = [];
    let missing = last;
    for (const record of [...this.#recent].reverse()) {
      if (missing <= 0) break;
      records.unshift(record.messages ? { ...record, messages: record.messages.slice(-missing) } : record);
      missing -= record.messages?.length ?? 1;
    }
    // Everything that this tab does not get is at or before this offset.
    const offset = this.#recent[this.#recent.length - records.length - 1]?.nextOffset ?? (records.length ? this.#start : position);
    return missing <= 0 || hasAll ? { offset, records } : undefined;
  }

  /** Begins the subscription anew, and returns where. All tabs get what follows, and take what they have not had. */
  async #subscribe(start: Pick<ChannelSubscribeOptions, 'from' | 'last'>): Promise<string> {
    this.#subscription?.close();
    this.#position = undefined;
    this.#recent = [];
    this.#end = undefined;
    const subscription = this.#options.channel().subscribe({
      stream: this.#stream,
      ...start,
      times: true, // Each message has one append, so that none holds a tab's position inside it.
      onRecord: (record) => this.#record(record),
      onStop: (stream) => this.#options.post({ type: 'stop', stream }),
      onEnd: (end) => {
        this.#end = end;
        this.#options.post({ type: 'end', end });
      },
    });
    this.#subscription = subscription;
    subscription.closed.catch((error) => this.#subscription === subscription && this.#refuse(error));
    const begun = await subscription.begun;
    this.#position ??= begun;
    this.#start = start.from === '-1' ? '-1' : begun;
    return this.#start;
  }

  /** The subscription has failed: all tabs learn it, once. */
  #refuse({ status = 0, code = 'error', message }: EnckeError): void {
    if (!this.#wants.size) return;
    this.#wants.clear();
    this.#options.post({ type: 'refused', stream: this.#stream, status, code, message });
    this.#options.onRefused();
  }

  #record(record: StreamRecord): void {
    this.#position = record.nextOffset;
    this.#recent.push(record);
    if (this.#recent.length > RECENT_RECORDS_MAX) this.#start = this.#recent.shift()!.nextOffset;
    this.#options.post({ type: 'record', record });
  }
}
