// Responses that do not come from Encke, or lead elsewhere: none of them is a success.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, EnckeError, subscribe } from '@encke/client';
import { Pool } from '@encke/client/jobs';
import { ERROR_BYTES_MAX } from '../dist/error.js';
import { APPENDED, CREATED, CUT, HTML, withScripted, reportedErrors } from './scripted.mjs';

const TIMEOUT = { timeout: 60_000 };
const WRITES = {
  create: (client) => client.create('s'),
  publish: (client) => client.publish('s', 1),
  close: (client) => client.close('s'),
  'close with data': (client) => client.close('s', 'done', { data: 1 }),
  stop: (client) => client.stop('s'),
};

for (const [name, write] of Object.entries(WRITES)) {
  test(`${name}: a success of something else is an error, after a bounded time`, TIMEOUT, async () => {
    const foreign = [HTML, { status: 202 }, { status: 206, headers: APPENDED.headers }, { status: 200 }, { status: 205, headers: APPENDED.headers }];
    await Promise.all(
      foreign.map((answer) =>
        withScripted(() => answer, async ({ url, requests }) => {
          await assert.rejects(write(new Client({ base: url, foreignMsMax: 1 })), (error) => {
            assert.ok(error instanceof EnckeError);
            assert.equal(error.code, 'not_encke');
            assert.match(error.message, new RegExp(`${url}/v1/stream/s .*status ${answer.status}.* lacks the (status|field) `));
            return true;
          });
          assert.equal(requests.length, 2);
        }),
      ),
    );
  });

  test(`${name}: redirects to elsewhere, and those that change the method, are errors that name both addresses`, TIMEOUT, async () => {
    await withScripted(() => APPENDED, async (elsewhere) => {
      for (const status of [301, 302, 303, 307, 308]) {
        await withScripted(() => ({ status, headers: { Location: `${elsewhere.url}/v1/stream/s` } }), async ({ url, requests }) => {
          await assert.rejects(write(new Client({ base: url, token: 'secret' })), ({ code, status: got, message }) => {
            assert.deepEqual([code, got], ['redirected', status]);
            return message.includes(`${url}/v1/stream/s`) && message.includes(`${elsewhere.url}/v1/stream/s`);
          });
          assert.equal(requests.length, 1);
        });
      }
      assert.deepEqual(elsewhere.requests, [], 'no request, and no token, goes to another origin');
    });
  });
}

test('redirects with 307 and 308 within the origin keep method, body and token', TIMEOUT, async () => {
  const answers = [{ status: 307, headers: { Location: '/moved?a=1' } }, { status: 308, headers: { Location: 'again' } }, APPENDED];
  await withScripted((_, number) => answers[number - 1], async ({ url, requests }) => {
    assert.equal((await new Client({ base: url, token: 'secret' }).publish('s', { a: 1 })).nextOffset, '1');
    assert.deepEqual(requests.map(({ url }) => url), ['/v1/stream/s', '/moved?a=1', '/again']);
    for (const { method, text, headers } of requests) assert.deepEqual([method, text, headers.authorization], ['POST', '{"a":1}', 'Bearer secret']);
  });
});

test('redirects without end are an error', TIMEOUT, async () => {
  await withScripted(() => ({ status: 308, headers: { Location: '/round' } }), async ({ url, requests }) => {
    await assert.rejects(new Client({ base: url }).create('s'), { code: 'redirected' });
    assert.equal(requests.length, 6);
  });
});

/** A fetch for addresses that no test can serve: it answers by the URL. */
const answering = (answers, seen = []) => async (url) => {
  seen.push(String(url));
  const { status, headers } = answers[String(url)];
  return new Response(null, { status, headers });
};

test('http may lead to https of the same host, and not back', TIMEOUT, async () => {
  const [plain, secure] = ['http://push.example/v1/stream/s', 'https://push.example/v1/stream/s'];
  const seen = [];
  const client = new Client({ base: 'http://push.example', fetch: answering({ [plain]: { status: 308, headers: { Location: secure } }, [secure]: CREATED }, seen) });
  assert.equal((await client.create('s')).created, true);
  assert.deepEqual(seen, [plain, secure]);
  const others = ['http://user@push.example/v1/stream/s', 'https://user:password@push.example/v1/stream/s', 'https://push.example.net/v1/stream/s', 'https://sub.push.example/v1/stream/s', 'http://[', 'data:,x'];
  for (const location of others) {
    const client = new Client({ base: 'http://push.example', fetch: answering({ [plain]: { status: 308, headers: { Location: location } } }) });
    await assert.rejects(client.create('s'), { code: 'redirected' }, location);
  }
  const back = new Client({ base: 'https://push.example', fetch: answering({ [secure]: { status: 308, headers: { Location: plain } } }) });
  await assert.rejects(back.create('s'), { code: 'redirected' });
});

test('a redirect that a browser hides, or that a fetch has followed, is an error', TIMEOUT, async () => {
  for (const hidden of [{ type: 'opaqueredirect', status: 0, ok: false }, { redirected: true, status: 200, ok: true, url: 'http://elsewhere.example/' }]) {
    const response = { headers: new Headers(APPENDED.headers), body: null, ...hidden };
    const client = new Client({ base: 'http://push.example', fetch: async () => response });
    await assert.rejects(client.publish('s', 1), { code: 'redirected', mayBeDone: hidden.redirected ?? false, message: /push\.example.* to (an address that is not known|http:\/\/elsewhere)/ });
  }
});

test('a subscription is not redirected to another origin', TIMEOUT, async () => {
  await withScripted(() => HTML, (elsewhere) =>
    withScripted(() => ({ status: 302, headers: { Location: elsewhere.url } }), async ({ url }) => {
      await assert.rejects(subscribe({ base: url, stream: 's', token: 'secret', onRecord() {} }).closed, { code: 'redirected' });
      assert.deepEqual(elsewhere.requests, []);
    }),
  );
});

test('names whose segments URLs remove are refused before anything is sent', TIMEOUT, async () => {
  await withScripted(() => APPENDED, async ({ url, requests }) => {
    const client = new Client({ base: url, token: 'secret' });
    for (const stream of ['../pool/p', 'a/../b', '.', '..', 'a/.', './a', 'a/..']) {
      for (const write of [() => client.create(stream), () => client.publish(stream, 1), () => client.close(stream), () => client.stop(stream)]) {
        await assert.rejects(write(), { name: 'EnckeError', code: 'bad_path' }, stream);
      }
    }
    assert.deepEqual(requests, []);
    // These stay as they are.
    for (const stream of ['...', 'a.b/..c', '%2e%2e/a', 'a/%2E', 'a\\..\\b']) {
      await client.publish(stream, 1);
      assert.equal(decodeURIComponent(requests.at(-1).url), `/v1/stream/${stream}`);
    }
  });
});

test('half of a surrogate pair is refused in a name', async () => {
  const client = new Client({ base: 'http://push.example' });
  await assert.rejects(client.publish('a/\ud800', 1), { code: 'bad_path', message: /surrogate/ });
  await assert.rejects(new Pool('\udc00', { base: 'http://push.example' }).create({ type: 'claim' }), { code: 'bad_path' });
  assert.throws(() => client.subscribe({ stream: '\ud800' }), { code: 'bad_path' });
});

test('an address that is none of a server is refused at construction', () => {
  for (const base of ['ftp://push.example', 'http://user@push.example', 'https://user:password@push.example', 'https://push.example/encke/']) {
    assert.throws(() => new Client({ base }), ({ name, message }) => name === 'TypeError' && /without a user or a path: .*push\.example/.test(message) && !message.includes('password'));
  }
  assert.throws(() => subscribe({ url: 'http://user@push.example/v1/stream/s' }), { name: 'TypeError' });
  for (const base of ['http://push.example', 'https://push.example/', new URL('http://[::1]:80')]) assert.ok(new Client({ base }));
});

test('the limit of time for something else than Encke is one minute, counts from its first response and begins again', TIMEOUT, async (t) => {
  let passedMs = 0;
  const { now } = performance;
  t.after(() => (performance.now = now));
  performance.now = () => passedMs;
  const states = [];
  const answers = [HTML, HTML, CUT, HTML, HTML, HTML];
  const times = [0, 59_999, 0, 1_000, 59_999, 1];
  const answer = (_, number) => {
    passedMs += times[number - 1];
    return answers[number - 1];
  };
  await withScripted(answer, async ({ url, requests }) => {
    const client = new Client({ base: url, onState: (state, error) => states.push(error?.code ?? state) });
    await assert.rejects(client.create('s'), { code: 'not_encke', mayBeDone: false });
    assert.equal(requests.length, 6);
    assert.deepEqual(states, ['not_encke', 'not_encke', 'away', 'not_encke', 'not_encke']);
  });
});

test('a call that is repeated is away, and live when a repetition succeeds', TIMEOUT, async () => {
  const states = [];
  const onState = (state, error) => states.push([state, error === undefined]);
  await withScripted((_, number) => (number < 3 ? CUT : APPENDED), async ({ url }) => {
    const client = new Client({ base: url, onState });
    for (const number of [1, 2]) await client.publish('s', number);
    assert.deepEqual(states, [['away', false], ['away', false], ['live', true]]);
  });
  // So is one whose `fetch` never works.
  const { signal, ...controller } = abortingAfter(2);
  const client = new Client({ base: 'http://push.example', fetch: async () => undefined, onState: controller.note });
  await assert.rejects(client.publish('s', 1, { signal }), { name: 'AbortError' });
});

test('an error of `onState` about a success does not repeat the append', TIMEOUT, async (t) => {
  const reports = reportedErrors(t);
  await withScripted((_, number) => (number === 1 ? CUT : APPENDED), async ({ url, requests }) => {
    const onState = (state) => {
      if (state === 'live') throw new Error('a mistake of the caller');
    };
    await new Client({ base: url, onState }).publish('s', 1, { signal: AbortSignal.timeout(60_000) });
    assert.equal(requests.length, 2);
  });
  assert.deepEqual(reports, ['a mistake of the caller']);
});

/** A signal that is aborted at the last of `count` calls of `note`. */
function abortingAfter(count) {
  const controller = new AbortController();
  return { signal: controller.signal, note: () => --count || controller.abort() };
}

test('a body of another kind than those of fetch is left alone', TIMEOUT, async () => {
  const answer = (status, more) => ({ status, ok: status < 300, headers: new Headers(), body: {}, text: async () => 'no more', ...more });
  for (const [response, code] of [[answer(200), 'not_encke'], [answer(404), 'http'], [answer(407), 'http']]) {
    const client = new Client({ base: 'http://push.example', foreignMsMax: 0, fetch: async () => response });
    await assert.rejects(client.publish('s', 1), { code, status: response.status });
  }
});

test('of the body of an error the client reads a bounded part, for a bounded time', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] });
  const endings = { long: 0, hanging: 0 };
  let hangs;
  const isHanging = new Promise((resolve) => (hangs = resolve));
  const bodies = {
    long: { pull: (body) => body.enqueue(new Uint8Array(1_000).fill(120)), cancel: () => (endings.long += 1) },
    hanging: { start: (body) => body.enqueue(new Uint8Array(1)), pull: () => hangs(), cancel: () => (endings.hanging += 1) },
  };
  for (const [name, body] of Object.entries(bodies)) {
    let bytes = 0;
    const counted = { ...body, pull: (controller) => ((bytes += 1_000), body.pull(controller)) };
    const fetch = async () => new Response(new ReadableStream(counted), { status: 404 });
    const call = new Client({ base: 'http://push.example', foreignMsMax: 0, fetch }).create('s');
    if (name === 'hanging') {
      await isHanging;
      await new Promise(setImmediate);
      t.mock.timers.tick(9_999);
      await new Promise(setImmediate);
      assert.equal(endings.hanging, 0);
      t.mock.timers.tick(1);
    }
    await assert.rejects(call, { code: 'http', status: 404 });
    assert.equal(endings[name], 1);
    assert.ok(bytes <= ERROR_BYTES_MAX + 3_000, `${bytes} bytes`);
  }
});

test('a subscription to the URL of another server gets its own token and not that of the client', TIMEOUT, async () => {
  await withScripted(() => ({ status: 401 }), async ({ url, requests }) => {
    const base = 'http://push.example';
    const client = new Client({ base, token: 'secret', fetch: (address, init) => fetch(String(address).replace(base, url), init) });
    for (const [options, seen] of [
      [{ url: `${url}/v1/stream/s` }, undefined],
      [{ url: `${url}/v1/stream/s`, token: 'own' }, 'Bearer own'],
      [{ url: `${base}/v1/stream/s` }, 'Bearer secret'],
      [{ url: '/v1/stream/s?sig=1' }, 'Bearer secret'],
    ]) {
      await assert.rejects(client.subscribe({ ...options, onRecord() {} }).closed, { status: 401 });
      assert.equal(requests.at(-1).headers.authorization, seen);
    }
    assert.match(requests.at(-1).url, /^\/v1\/stream\/s\?sig=1&live=sse/);
    assert.equal(requests.length, 4);
  });
});

test('a large body whose uploads are cut off, while the server answers, is given up', TIMEOUT, async () => {
  const large = 'x'.repeat(70_000);
  await withScripted(({ method }) => (method === 'POST' ? CUT : { status: 200 }), async ({ url, requests }) => {
    await assert.rejects(new Client({ base: url }).publish('s', large), { code: 'upload_failed', mayBeDone: true, message: /70002 bytes/ });
    assert.equal(requests.filter(({ method }) => method === 'POST').length, 5);
  });
  // A small one is repeated until the server takes it, and so is a large one while the server is away, or if it answers now and then.
  const [away, there, busy] = [CUT, { status: 200 }, { status: 503 }];
  const takesSeventh = (post) => (post <= 6 ? CUT : APPENDED);
  const answersFourth = (post) => (post === 4 ? busy : post < 8 ? CUT : APPENDED);
  const kinds = [['small', there, takesSeventh, 7], [large, away, takesSeventh, 7], [large, there, answersFourth, 8]];
  await Promise.all(kinds.map(async ([body, probe, answerOf, count]) => {
    let posts = 0;
    await withScripted(({ method }) => (method === 'POST' ? answerOf(++posts) : probe), async ({ url }) => {
      await new Client({ base: url }).publish('s', body);
      assert.equal(posts, count);
    });
  }));
});

test('a field or a token that no request can have is refused at once', TIMEOUT, async () => {
  await withScripted(() => APPENDED, async ({ url, requests }) => {
    await assert.rejects(new Client({ base: url }).create('s', { owner: 'a\nb' }), TypeError);
    await assert.rejects(new Client({ base: url, token: 'a\nb' }).publish('s', 1), { code: 'bad_token' });
    assert.deepEqual(requests, []);
    await new Client({ base: url, token: () => null }).publish('s', 1);
    assert.equal(requests[0].headers.authorization, undefined);
  });
});
