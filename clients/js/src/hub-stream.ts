import type { Channel } from './channel.js';
import type { ChannelSubscription, ChannelSubscribeOptions } from './channel-subscription.js';
import type { EnckeError } from './error.js';
import type { Address, HubMessage, Want } from './tab-messages.js';
import type { End, StreamRecord } from './types.js';

/** Records that a hub keeps for tabs that come later, instead of reading them again. */
const RECENT_RECORDS_MAX = 1_000;
/** The most characters of their data. */
export const RECENT_CHARS_MAX = 4 * 2 ** 20;

/** A record, and the length of its data in characters. */
interface Recent {
  record: StreamRecord;
  chars: number;
}

export interface HubStreamOptions {
  channel: () => Channel;
  post: (message: HubMessage) => void;
  /** No tab is left, because the server has refused what they want. */
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
  #recent: Recent[] = [];
  #recentChars = 0;
  #start = '';
  #position?: string;
  #end?: End;

  constructor(stream: string, options: HubStreamOptions) {
    this.#stream = stream;
    this.#options = options;
  }

  /** A tab may want the same subscription again, behind another offset. */
  add(key: string, want: Want): void {
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
    // Only the server can tell whether an offset of the page behind everything is one.
    const isKnown = offset !== undefined || this.#position === undefined || start === undefined || start === 'now' || start <= this.#position;
    const begin = isKnown ? this.#recentFrom(start, last) : undefined;
    if (begin) {
      this.#options.post({ type: 'begin', to, offset: begin.offset });
      for (const recent of begin.records) this.#options.post({ type: 'record', to, ...recent });
      if (this.#end) this.#options.post({ type: 'end', to, end: this.#end });
      return;
    }
    const before = this.#position;
    let begun: string;
    try {
      begun = await this.#subscribe(start === undefined ? { last } : { from: start });
    } catch (error) {
      this.#refuse(error as EnckeError, key, to);
      if (before !== undefined && this.#wants.size) await this.#subscribe({ from: before });
      return;
    }
    this.#options.post({ type: 'begin', to, offset: begun });
    // It may have been broadcast before the tab was admitted.
    if (this.#end) this.#options.post({ type: 'end', to, end: this.#end });
    // The other tabs are further back than this one.
    if (before !== undefined && begun > before) await this.#subscribe({ from: before });
  }

  /** Where a subscription begins by what is here, and the records behind it; nothing if they must be read. */
  #recentFrom(start: string | undefined, last = 0): { offset: string; records: Recent[] } | undefined {
    const position = this.#position;
    if (position === undefined) return;
    const hasAll = this.#start === '-1';
    if (start === 'now') return { offset: position, records: [] };
    if (start === '-1') return hasAll ? { offset: start, records: this.#recent } : undefined;
    if (start !== undefined) {
      if (!hasAll && start < this.#start) return;
      return { offset: start, records: this.#recent.filter(({ record }) => record.nextOffset > start) };
    }
    const records: Recent[] = [];
    let missing = last;
    for (const { record, chars } of [...this.#recent].reverse()) {
      if (missing <= 0) break;
      records.unshift({ record: record.messages ? { ...record, messages: record.messages.slice(-missing) } : record, chars });
      missing -= record.messages?.length ?? 1;
    }
    // Everything that this tab does not get is at or before this offset.
    const offset = this.#recent[this.#recent.length - records.length - 1]?.record.nextOffset ?? (records.length ? this.#start : position);
    return missing <= 0 || hasAll ? { offset, records } : undefined;
  }

  /** Begins the subscription anew, and returns where. All tabs get what follows, and take what they have not had. */
  async #subscribe(start: Pick<ChannelSubscribeOptions, 'from' | 'last'>): Promise<string> {
    this.#subscription?.close();
    this.#position = undefined;
    this.#recent = [];
    this.#recentChars = 0;
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
    // Before it has begun, the caller decides.
    subscription.closed.catch((error) => this.#subscription === subscription && this.#position !== undefined && this.#refuse(error));
    const begun = await subscription.begun;
    this.#position ??= begun;
    this.#start = start.from === '-1' ? '-1' : begun;
    return this.#start;
  }

  /** The server has refused the subscription: the tab of an address learns it, or all tabs. */
  #refuse({ status = 0, code = 'error', message }: EnckeError, key?: string, to?: Address): void {
    if (!this.#wants.size) return;
    if (key === undefined) this.#wants.clear();
    else this.#wants.delete(key);
    this.#options.post({ type: 'refused', to, stream: this.#stream, status, code, message });
    if (!this.#wants.size) this.#options.onRefused();
  }

  #record(record: StreamRecord): void {
    const { messages, text, base64, nextOffset } = record;
    const chars = (text ?? base64 ?? JSON.stringify(messages ?? 0)).length;
    this.#position = nextOffset;
    this.#recent.push({ record, chars });
    this.#recentChars += chars;
    while (this.#recent.length > RECENT_RECORDS_MAX || this.#recentChars > RECENT_CHARS_MAX) {
      const oldest = this.#recent.shift()!;
      this.#recentChars -= oldest.chars;
      this.#start = oldest.record.nextOffset;
    }
    this.#options.post({ type: 'record', record, chars });
  }
}
