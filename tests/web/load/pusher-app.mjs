// An app of the Pusher protocol with a key and a secret of its own: signatures, and the HTTP API.

import crypto from 'node:crypto';
import http from 'node:http';

/** How long a request may take: a node that is stopped does not answer. */
const REQUEST_MS_MAX = 2_000;

export class PusherApp {
  #agent = new http.Agent({ keepAlive: true, maxSockets: 16 });

  id = 'load';
  key = crypto.randomBytes(10).toString('hex');
  secret = crypto.randomBytes(20).toString('hex');
  /** Requests for members that got no answer in time, or an error. */
  unanswered = 0;

  /** The configuration file of a server with this app. `settings`: further keys of the app. */
  configuration(settings) {
    const keys = Object.entries({ id: this.id, key: this.key, secret: this.secret, ...settings });
    return `[[pusher.apps]]\n${keys.map(([key, value]) => `${key} = ${JSON.stringify(value)}\n`).join('')}`;
  }

  /** The data of `pusher:subscribe` for a member of a presence channel. */
  subscription(socketId, channel, user) {
    const channelData = JSON.stringify({ user_id: user });
    const auth = `${this.key}:${this.#sign(`${socketId}:${channel}:${channelData}`)}`;
    return { channel, auth, channel_data: channelData };
  }

  /** The ids of the members of a channel, as the server at an address lists them. */
  async users(address, channel) {
    const path = `/apps/${this.id}/channels/${channel}/users`;
    const query = `auth_key=${this.key}&auth_timestamp=${Math.floor(Date.now() / 1_000)}&auth_version=1.0`;
    const { status, body } = await this.#request(address, `${path}?${query}&auth_signature=${this.#sign(`GET\n${path}\n${query}`)}`);
    if (status !== 200) throw new Error(`users of ${channel}: status ${status}: ${body}`);
    return JSON.parse(body).users.map((user) => user.id);
  }

  #sign(text) {
    return crypto.createHmac('sha256', this.secret).update(text).digest('hex');
  }

  #request(address, path) {
    return new Promise((resolve, reject) => {
      const [host, port] = address.split(':');
      const request = http.get({ host, port, path, agent: this.#agent, timeout: REQUEST_MS_MAX }, async (response) => {
        try {
          const parts = await response.setEncoding('utf8').toArray();
          resolve({ status: response.statusCode, body: parts.join('') });
        } catch (error) {
          reject(error);
        }
      });
      request.once('timeout', () => request.destroy(new Error(`no answer within ${REQUEST_MS_MAX} ms`)));
      request.once('error', reject);
    });
  }
}
