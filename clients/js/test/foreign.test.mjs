// Responses that do not come from Encke, or lead elsewhere: none of them is a success.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Client, EnckeError, subscribe } from '@encke/client';
import { APPENDED, CREATED, CUT, HTML, withScripted } from './scripted.mjs';

const TIMEOUT = { timeout: 60_000 };
const WRITES = {
  create: (client) => client.create('s'),
  publish: (client) => client.publish('s', 1),
  close: (client) => client.close('s'),
  'close with data': (client) => client.close('s', 'done', { data: 1 }),
  stop: (client) => client.stop('s'),
};

for (const [name, write] of Object.entries(WRITES)) {
  test(`${name}: a success of something else is an error, after a bounded number of attempts`, TIMEOUT, async () => {
    const foreign = [HTML, { status: 202 }, { status: 206, headers: APPENDED.headers }, { status: 200 }, { status: 205, headers: APPENDED.headers }];
    await Promise.all(
      foreign.map((answer) =>
        withScripted(() => answer, async ({ url, requests }) => {
          await assert.rejects(write(new Client({ base: url })), (error) => {
            assert.ok(error instanceof EnckeError);
            assert.equal(error.code, 'not_encke');
            assert.match(error.message, new RegExp(`${url}/v1/stream/s .*status ${answer.status}.* lacks the (status|field) `));
            return true;
          });
          assert.equal(requests.length, 5);
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
  const others = ['https://push.example.net/v1/stream/s', 'https://sub.push.example/v1/stream/s', 'http://[', 'data:,x'];
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
    await assert.rejects(client.publish('s', 1), { code: 'redirected', message: /push\.example.* to (an address that is not known|http:\/\/elsewhere)/ });
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

test('a large body whose uploads are cut off, while the server answers, is given up', TIMEOUT, async () => {
  const large = 'x'.repeat(70_000);
  await withScripted(({ method }) => (method === 'POST' ? CUT : { status: 200 }), async ({ url, requests }) => {
    await assert.rejects(new Client({ base: url }).publish('s', large), { code: 'upload_failed', mayBeDone: true, message: /70002 bytes/ });
    assert.equal(requests.filter(({ method }) => method === 'POST').length, 5);
  });
  // A small one is repeated until the server takes it, and so is a large one while the server is away.
  for (const [body, isAway] of [['small', false], [large, true]]) {
    let posts = 0;
    const answer = ({ method }) => (method === 'POST' ? (++posts <= 6 ? CUT : APPENDED) : isAway ? CUT : { status: 200 });
    await withScripted(answer, async ({ url }) => {
      await new Client({ base: url }).publish('s', body);
      assert.equal(posts, 7);
    });
  }
});

test('a field or a token that no request can have is refused at once', TIMEOUT, async () => {
  await withScripted(() => APPENDED, async ({ url, requests }) => {
    await assert.rejects(new Client({ base: url }).create('s', { owner: 'a\nb' }), TypeError);
    await assert.rejects(new Client({ base: url, token: 'a\nb' }).publish('s', 1), { code: 'bad_token' });
    assert.deepEqual(requests, []);
  });
});
