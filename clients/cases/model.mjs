// A small model of the server. It changes its streams by requests and messages, and makes the responses; it stores each number of a producer once.

/** An offset as the server writes it; `position` counts records. */
export const offsetOf = (position) => `${position.toString(16).padStart(16, '0')}_${'0'.repeat(16)}`;
const positionOf = (offset, end) => (offset === '-1' ? 0 : offset === 'now' || offset === undefined ? end : Number.parseInt(offset, 16));

const JSON_TYPE = { 'Content-Type': 'application/json' };

export class Model {
  #streams = new Map();
  /** The bodies of the jobs that were posted. */
  jobs = [];

  stream(name) {
    if (!this.#streams.has(name)) this.#streams.set(name, { records: [], producers: new Map(), closed: false });
    return this.#streams.get(name);
  }

  /** Another client deletes the stream and creates it again. */
  recreate(name) {
    this.#streams.delete(name);
  }

  /** The response to a request: status, fields and body. `newline` ends the lines of event streams. */
  respond({ method, url, headers, body }, newline = '\n') {
    const { pathname, searchParams } = new URL(url, 'http://model');
    const [, kind, name] = /\/v1\/(stream|events|pool)\/?(.*)$/.exec(pathname) ?? [];
    if (kind === 'pool') return this.#post(body);
    if (kind === 'events') return this.#events(searchParams, newline);
    if (kind !== 'stream') return problem(404, 'not_found');
    if (method === 'PUT') return this.#create(name, body);
    const stream = this.stream(name);
    const state = { 'Stream-Next-Offset': offsetOf(stream.records.length), ...(stream.closed && { 'Stream-Closed': 'true', 'Encke-End-Reason': 'done' }) };
    if (method === 'DELETE') {
      this.#streams.delete(name);
      return { status: 204 };
    }
    if (method === 'POST') return headers['encke-stop'] ? { status: 204, headers: { ...state, 'Encke-Stop-Requested': 'true' } } : this.#append(stream, headers, body);
    if (method === 'HEAD') return { status: 200, headers: { ...JSON_TYPE, ...state } };
    const from = positionOf(searchParams.get('lastEventId') ?? headers['last-event-id'] ?? searchParams.get('offset') ?? undefined, stream.records.length);
    if (searchParams.has('live')) return this.#live(stream, from, searchParams.get('live') === 'true', newline);
    return { status: 200, headers: { ...JSON_TYPE, ...state, 'Stream-Up-To-Date': 'true' }, body: JSON.stringify(stream.records.slice(from)) };
  }

  /** The response to a message of a WebSocket, as a list of messages. */
  message({ type, id, stream: name, offset, data, producer }) {
    const stream = this.stream(name);
    if (type === 'authenticate') return [{ type: 'authenticated', id }];
    if (type === 'unsubscribe') return [{ type: 'unsubscribed', id, stream: name }];
    if (type === 'subscribe') {
      const from = positionOf(offset, stream.records.length);
      const records = stream.records.slice(from).map((record, index) => ({ type: 'records', stream: name, offset: offsetOf(from + index + 1), data: [record] }));
      const end = stream.closed ? [{ type: 'ended', stream: name, reason: 'closed', endReason: 'done' }] : [];
      return [{ type: 'subscribed', id, stream: name, offset: offsetOf(from) }, ...records, ...end];
    }
    const verdict = this.#store(stream, producer, [data]);
    if (typeof verdict === 'object') return [{ type: 'error', id, stream: name, ...verdict }];
    return [{ type: 'appended', id, stream: name, offset: offsetOf(stream.records.length), ...(verdict === 'duplicate' && { duplicate: true }) }];
  }

  #create(name, body) {
    const status = this.#streams.has(name) ? 200 : 201;
    const { records } = this.stream(name);
    if (status === 201 && body) records.push(...[JSON.parse(body)].flat());
    return { status, headers: { ...JSON_TYPE, 'Stream-Next-Offset': offsetOf(records.length), 'Encke-Ack': 'synced' } };
  }

  #append(stream, headers, body) {
    const id = headers['producer-id'];
    const producer = id && { id, epoch: Number(headers['producer-epoch']), seq: Number(headers['producer-seq']) };
    if (!body) {
      if (headers['stream-closed']) stream.closed = true;
      return { status: 204, headers: { 'Stream-Next-Offset': offsetOf(stream.records.length), 'Stream-Closed': 'true' } };
    }
    const verdict = this.#store(stream, producer, [JSON.parse(body)].flat());
    if (typeof verdict === 'object') return problem(verdict.status, verdict.code, verdict.headers);
    if (headers['stream-closed']) stream.closed = true;
    const fields = { 'Stream-Next-Offset': offsetOf(stream.records.length), ...(producer && { 'Producer-Epoch': producer.epoch, 'Producer-Seq': producer.seq }) };
    return { status: producer && verdict === 'stored' ? 200 : 204, headers: fields };
  }

  #store(stream, producer, values) {
    if (producer) {
      const last = stream.producers.get(producer.id) ?? { epoch: producer.epoch, seq: -1 };
      if (producer.epoch < last.epoch) return { status: 403, code: 'stale_epoch', message: 'a later epoch has begun' };
      const next = producer.epoch > last.epoch ? 0 : last.seq + 1;
      if (producer.seq < next) return 'duplicate';
      if (producer.seq > next) return { status: 409, code: 'sequence_gap', message: 'a number is missing', headers: { 'Producer-Expected-Seq': next, 'Producer-Received-Seq': producer.seq } };
      if (stream.closed) return { status: 409, code: 'closed', message: 'the stream is closed', headers: { 'Stream-Closed': 'true' } };
      stream.producers.set(producer.id, { epoch: producer.epoch, seq: producer.seq });
    }
    stream.records.push(...values);
    return 'stored';
  }

  #post(body) {
    this.jobs.push(body);
    const job = { job: this.jobs.length, token: 'of-the-job' };
    return { status: 202, headers: { ...JSON_TYPE, 'Job-Id': job.job, 'Job-Token': job.token }, body: JSON.stringify(job) };
  }

  #events(query, newline) {
    const [, name, start] = /^(.*?)(?:@(.*))?$/.exec(query.get('stream'));
    const { records, closed } = this.stream(name);
    const from = positionOf(query.get('lastEventId') ?? start, records.length);
    const lines = records.slice(from).flatMap((record, index) => {
      const offset = offsetOf(from + index + 1);
      return [`id:${offset}`, `data:${JSON.stringify({ stream: name, nextOffset: offset, messages: [record] })}`, ''];
    });
    const end = closed ? ['event:end', `data:${JSON.stringify({ stream: name, why: 'closed', endReason: 'done' })}`, ''] : [];
    return events([`id:${offsetOf(from)}`, '', ...lines, ...end], newline, closed);
  }

  #live({ records, closed }, from, asLines, newline) {
    const control = (end) => JSON.stringify({ streamNextOffset: offsetOf(records.length), upToDate: true, ...(end && { streamClosed: true, endReason: 'done' }) });
    const rest = records.slice(from).map((record, index) => [offsetOf(from + index + 1), record]);
    if (asLines) {
      const lines = rest.map(([offset, data]) => JSON.stringify({ offset, data }));
      const body = [...lines, `{"control":${control(closed)}}`, ''].join('\n');
      return { status: 200, headers: { 'Content-Type': 'application/x-ndjson' }, body, isLive: true, isEnd: closed };
    }
    const lines = rest.flatMap(([offset, data]) => [`id: ${offset}`, 'event: data', `data:${JSON.stringify([data])}`, '']);
    return events([...lines, `id: ${offsetOf(records.length)}`, 'event: control', `data:${control(closed)}`, ''], newline, closed);
  }
}

const events = (lines, newline, isEnd) => ({
  status: 200,
  headers: { 'Content-Type': 'text/event-stream' },
  body: lines.map((line) => line + newline).join(''),
  isLive: true,
  isEnd,
});

const problem = (status, code, headers = {}) => ({
  status,
  headers: { 'Content-Type': 'application/problem+json', ...headers },
  body: JSON.stringify({ error: { code, message: `refused as ${code}` } }),
});
