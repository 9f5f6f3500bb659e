import { EnckeError, type EndReason, type OriginOptions } from '@encke/client';

/** Where the server is, and how requests to it are authorised. */
export interface ServerOptions extends OriginOptions {
  base: string | URL;
}

/** What HEAD says of a stream. */
export interface StreamState {
  nextOffset: string;
  isClosed: boolean;
  endReason?: EndReason;
  metadata: Record<string, unknown>;
}

const RETRY_MS_FIRST = 250;
const RETRY_MS_MAX = 30_000;

/**
 * Makes a request for a stream until the server accepts or refuses it. A refusal is thrown as an `EnckeError`. An attempt whose response was lost is
 * repeated, so the request must have no effect twice.
 */
export async function request(server: ServerOptions, stream: string, init: RequestInit = {}, query = ''): Promise<Response> {
  const url = urlOf(server, stream);
  url.search = query;
  let renewsToken = typeof server.token === 'function';
  for (let failures = 0; ; failures += 1) {
    let retryMs = Math.min(RETRY_MS_MAX, RETRY_MS_FIRST * 2 ** failures);
    try {
      const response = await send(server, url, init);
      if (response.ok) return response;
      throw await EnckeError.fromResponse(response);
    } catch (error) {
      if (error instanceof EnckeError) {
        if (error.status === 401 && renewsToken) {
          renewsToken = false;
          continue;
        }
        if (!error.isTransient) throw error;
        if (error.retryAfter) retryMs = error.retryAfter * 1_000 * 2;
      }
    }
    // Clients that fail together do not come back together.
    await new Promise((resolve) => setTimeout(resolve, retryMs * (0.5 + Math.random() / 2)));
  }
}

export function urlOf({ base }: ServerOptions, stream: string): URL {
  return new URL(`/v1/stream/${stream.split('/').map(encodeURIComponent).join('/')}`, base);
}

/** The state of a stream, or `undefined` if there is none of the name. */
export async function stateOf(server: ServerOptions, stream: string): Promise<StreamState | undefined> {
  const response = await unlessMissing(request(server, stream, { method: 'HEAD' }));
  if (!response) return;
  const { headers } = response;
  return {
    nextOffset: headers.get('Stream-Next-Offset') ?? '',
    isClosed: headers.get('Stream-Closed') === 'true',
    endReason: (headers.get('Encke-End-Reason') as EndReason | null) ?? undefined,
    metadata: JSON.parse(headers.get('Encke-Metadata') ?? '{}'),
  };
}

/** Deletes a stream, if it is there. */
export async function remove(server: ServerOptions, stream: string): Promise<void> {
  await unlessMissing(request(server, stream, { method: 'DELETE' }));
}

/** The result, or `undefined` if the stream does not exist. */
export async function unlessMissing<Result>(result: Promise<Result>): Promise<Result | undefined> {
  try {
    return await result;
  } catch (error) {
    if (isMissing(error)) return;
    throw error;
  }
}

/** Whether a request was refused because the stream does not exist. */
export const isMissing = (error: unknown): boolean => error instanceof EnckeError && [404, 410].includes(error.status);

async function send({ token, credentials, fetch = globalThis.fetch }: ServerOptions, url: URL, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const bearer = typeof token === 'function' ? await token() : token;
  if (bearer !== undefined) headers.set('Authorization', `Bearer ${bearer}`);
  return fetch(url, { credentials, ...init, headers });
}
