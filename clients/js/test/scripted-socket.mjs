// A WebSocket whose server is the test: for orders of messages and failures that a real server has only by chance.

import { waitFor } from '../../../tests/web/wait.mjs';

/** A constructor of sockets, and the sockets that a channel has made with it. */
export function scripted() {
  const sockets = [];
  class ScriptedSocket {
    /** The messages of the client. */
    sent = [];
    isOpen = false;
    isClosed = false;

    constructor() {
      sockets.push(this);
      setImmediate(() => {
        if (this.isClosed) return;
        this.isOpen = true;
        this.onopen();
      });
    }

    send(text) {
      this.sent.push(JSON.parse(text));
    }

    close() {
      if (this.isClosed) return;
      this.isClosed = true;
      setImmediate(() => this.onclose({ code: 1005, reason: '' }));
    }

    /** Gives the client messages. */
    say(...messages) {
      for (const message of messages) this.onmessage({ data: typeof message === 'string' ? message : JSON.stringify(message) });
    }

    /** Cuts the connection. */
    cut(code = 1006) {
      this.isClosed = true;
      this.onclose({ code, reason: '' });
    }

    /** The messages of a type, when there are at least `count`. */
    async messages(type, count) {
      const some = () => this.sent.filter((message) => message.type === type);
      await waitFor(`${count} messages ${type}`, () => some().length >= count);
      return some();
    }
  }
  /** The socket of a number, when the channel has made it. */
  const socket = async (index) => {
    await waitFor(`connection ${index}`, () => sockets.length > index);
    return sockets[index];
  };
  return { WebSocket: ScriptedSocket, sockets, socket };
}

/** An acknowledgement of an append. */
export const appended = ({ id, stream }, offset = '1') => ({ type: 'appended', id, stream, offset });
/** A refusal of a message. */
export const refusal = ({ id, stream }, status, code, more) => ({ type: 'error', id, stream, status, code, message: code, ...more });
