// What clients of pusher-js have missed while they were away: a server of Encke sends it when they subscribe again.

/** A client of pusher-js, as far as it is needed here. */
export interface PusherClient {
  send_event(name: string, data: any, channel?: string): boolean;
  unsubscribe(name: string): void;
  channel(name: string): { subscribed: boolean; emit(name: string, data?: unknown): unknown } | undefined;
  connection: {
    bind(event: string, handler: () => void): unknown;
    connection: { transport: { emit(event: string, data?: any, metadata?: any): any } } | null;
  };
}

/** What the server says of an event, or of where a subscription begins. */
interface ServerMessage {
  event?: string;
  channel?: string;
  data?: unknown;
  /** The position behind an event. */
  offset?: string;
}

/** Emitted on a channel if the server no longer keeps all that was missed. What it keeps follows. */
export const GAP = 'encke:gap';

/**
 * Has a client get what its channels have missed, whenever it connects again: each event once and in order. To be called before the
 * client is connected. Servers other than Encke ignore it.
 */
export function replay<P extends PusherClient>(pusher: P): P {
  /** Up to where each channel has got. */
  const reached = new Map<string, string>();
  const send = pusher.send_event.bind(pusher);
  const unsubscribe = pusher.unsubscribe.bind(pusher);
  // While the client is away it sends no `pusher:unsubscribe`.
  pusher.unsubscribe = (name) => {
    reached.delete(name);
    unsubscribe(name);
  };
  pusher.send_event = (name, data, channel) => {
    // Sent also by `unsubscribe()` of a channel, which then remains in the client's list.
    if (name === 'pusher:unsubscribe') reached.delete(data.channel);
    if (name !== 'pusher:subscribe') return send(name, data, channel);
    return send(name, { ...data, encke_after: reached.get(data.channel) ?? 'now' }, channel);
  };
  const note = ({ event, channel, data, offset }: ServerMessage) => {
    // What is still on its way to a channel that was left does not count for one that is entered again.
    if (channel === undefined || !pusher.channel(channel)?.subscribed) return;
    if (offset !== undefined) reached.set(channel, offset);
    if (event !== POSITION) return;
    const position = JSON.parse(String(data)) as { offset: string; gap: boolean };
    reached.set(channel, position.offset);
    if (position.gap) pusher.channel(channel)?.emit(GAP);
  };
  // The client drops what it does not know before it hands an event out, so this reads what its connection receives: before the client does,
  // because a handler of the page may throw.
  pusher.connection.bind('connected', () => {
    const transport = pusher.connection.connection?.transport;
    if (!transport) return;
    const emit = transport.emit.bind(transport);
    transport.emit = (event, data, metadata) => {
      // A connection that was given up may still receive.
      if (event === 'message' && pusher.connection.connection?.transport === transport) note(parse(data?.data));
      return emit(event, data, metadata);
    };
  });
  return pusher;
}

/** A message of the server. What is none says nothing. */
function parse(text: unknown): ServerMessage {
  try {
    return (JSON.parse(String(text)) as ServerMessage | null) ?? {};
  } catch {
    return {};
  }
}

/** The event that says where a subscription begins. */
const POSITION = 'pusher_internal:encke_position';
