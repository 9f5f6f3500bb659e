// What clients of pusher-js have missed while they were away: a server of Encke sends it when they subscribe again.

/** A client of pusher-js, as far as it is needed here. */
export interface PusherClient {
  send_event(name: string, data: any, channel?: string): boolean;
  channel(name: string): { emit(name: string, data?: unknown): unknown } | undefined;
  connection: {
    bind(event: string, handler: () => void): unknown;
    connection: { transport: { bind(event: string, handler: (message: { data?: unknown }) => void): unknown } };
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
  pusher.send_event = (name, data, channel) => {
    if (name === 'pusher:unsubscribe') reached.delete(data.channel);
    if (name !== 'pusher:subscribe') return send(name, data, channel);
    return send(name, { ...data, encke_after: reached.get(data.channel) ?? 'now' }, channel);
  };
  const note = ({ event, channel, data, offset }: ServerMessage) => {
    if (channel === undefined) return;
    if (offset !== undefined) reached.set(channel, offset);
    if (event !== POSITION) return;
    const position = JSON.parse(String(data)) as { offset: string; gap: boolean };
    reached.set(channel, position.offset);
    if (position.gap) pusher.channel(channel)?.emit(GAP);
  };
  // The client drops what it does not know before it hands an event out, so this reads what its connection receives.
  pusher.connection.bind('connected', () => {
    pusher.connection.connection.transport.bind('message', ({ data }) => note(JSON.parse(String(data)) as ServerMessage));
  });
  return pusher;
}

/** The event that says where a subscription begins. */
const POSITION = 'pusher_internal:encke_position';
