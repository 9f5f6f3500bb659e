// The suite's `fetch` with the key of a server with access control, in requests without credentials of their own. Its callbacks have some.

const plain = globalThis.fetch;

globalThis.fetch = (input, options = {}) => {
  const headers = new Headers(options.headers);
  if (!headers.has('authorization')) headers.set('authorization', `Bearer ${process.env.CONFORMANCE_KEY}`);
  return plain(input, { ...options, headers });
};
