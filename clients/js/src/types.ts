// The vocabulary of docs/reading.md, docs/events.md and docs/writing.md.

/** Why a stream has ended (docs/writing.md, The end). */
export type EndReason = 'done' | 'failed' | 'stopped' | 'abandoned';

/** How safe data is when it is acknowledged (docs/operations.md). */
export type Ack = 'synced' | 'written' | 'accepted';

/** `-1` is the beginning, `now` the end, and anything else an offset that the server gave. */
export type From = '-1' | 'now' | (string & {});

/** One record of a stream, with `messages`, `text` or `base64` by the content type of the stream. */
export interface StreamRecord<Message = any> {
  stream: string;
  /** The offset behind the record in its own stream. Every read of that stream accepts it. */
  nextOffset: string;
  /** The id of the event, which states the position in all streams of the subscription. */
  id?: string;
  /** The messages of one append to a stream of JSON. */
  messages?: Message[];
  text?: string;
  base64?: string;
  /** With `times`: when the server took the record, in milliseconds since 1970. */
  timeMs?: number;
}

/** The end of a stream. */
export interface End {
  stream: string;
  why: 'closed' | 'deleted';
  endReason?: EndReason;
}

/** Whether a connection is there. `away` has the reason, if there is an error. */
export type ConnectionState = 'live' | 'away';

/** What a subscriber is called back for. */
export interface SubscriberCallbacks<Message = any> {
  /** Each record once and in order. If it returns a promise, the next record waits for it. */
  onRecord?: (record: StreamRecord<Message>) => unknown;
  /** A stream has no further records. */
  onEnd?: (end: End) => void;
  /** A reader asks the writer of the stream to stop. */
  onStop?: (stream: string) => void;
  /** Records of a stream of a pattern are removed that the subscriber has not got. */
  onGap?: (stream: string) => void;
  /** The connection is there, or is away and will be opened again. */
  onState?: (state: ConnectionState, error?: unknown) => void;
}

/** The content of a job or a result: a value of JSON, a string of any `text/*` type, or bytes. */
export type Content = any;
