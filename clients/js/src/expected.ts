import { EnckeError, NOT_ENCKE } from './error.js';

/** A success as the protocol promises it. Portals and proxies answer 200 with something else, and nothing was stored. */
export interface Expected {
  statuses: readonly number[];
  /** Fields of which each of these responses has one. */
  fields?: readonly string[];
  /** The content type, of 200. */
  type?: string;
}

/** The statuses of successes of Encke, of which 202 belongs to a job that is posted. A part of a response (206) is none. */
export const ANY_SUCCESS: Expected = { statuses: [200, 201, 202, 204] };

/** Throws an error that names the request and the difference, unless the response is as expected. */
export function checkResponse(response: Response, request: string, { statuses, fields = [], type }: Expected): void {
  const { status, headers } = response;
  const sent = headers.get('Content-Type') ?? 'no content type';
  const lacks = !statuses.includes(status)
    ? `the status ${statuses.join(' or ')}`
    : type && status === 200 && !sent.toLowerCase().startsWith(type)
      ? `the content type ${type}`
      : fields.length && !fields.some((name) => headers.get(name)) && `the field ${fields.join(' or ')}`;
  if (!lacks) return;
  discard(response);
  throw new EnckeError(status, NOT_ENCKE, `the response to ${request} is not one of Encke: it has status ${status} and ${sent}, and lacks ${lacks}`);
}

/** Ends the connection of a response whose body is of no use. */
export function discard({ body }: Response): void {
  // The body of a `fetch` of the application may have no `cancel`.
  if (body && !body.locked) body.cancel?.().catch(() => {});
}
