import { EnckeError, Origin, type EndReason, type OriginOptions } from '@encke/client';

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

/**
 * Makes a request for a stream until the server accepts or refuses it. A refusal is thrown as an `EnckeError`. An attempt whose response was lost is
 * repeated, so the request must have no effect twice.
 */
export function request(server: ServerOptions, stream: string, init: RequestInit = {}, query = ''): Promise<Response> {
  const url = urlOf(server, stream);
  url.search = query;
  const expected = init.method === 'DELETE' ? { statuses: [204] } : { statuses: [200, 204], fields: ['Stream-Next-Offset'] };
  return new Origin(server).persist(url, init, { signal: new AbortController().signal, expected });
}

export const urlOf = (server: ServerOptions, stream: string): URL => new Origin(server).stream(stream);

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
