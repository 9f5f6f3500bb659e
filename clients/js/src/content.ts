import { copyOfBytes, encodeBody, isBlob, isJson } from './body.js';
import type { Content } from './types.js';

const isText = (type: string): boolean => /^\s*text\//i.test(type);

/**
 * The body and the content type of a value, as it is at the time of the call. Strings are `text/plain` and bytes `application/octet-stream` unless another
 * type is given; `undefined` is `null` in JSON.
 */
export async function encodeContent(value: Content = null, contentType?: string): Promise<{ body: BodyInit; type: string }> {
  // A blob of another realm is none for `fetch`.
  const bytes = isBlob(value) ? new Uint8Array(await value.arrayBuffer()) : copyOfBytes(value);
  const type = contentType || (bytes ? value.type || 'application/octet-stream' : typeof value === 'string' ? 'text/plain' : 'application/json');
  return { body: bytes ?? encodeBody(value, type), type };
}

/**
 * The value of content, by its type: JSON, a string for `text/*`, and bytes for any other type. Content that is not of its type is not changed: JSON that
 * cannot be parsed is a string, as the server shows it, and text that is not UTF-8 is bytes.
 */
export function decodeContent(type: string, bytes: Uint8Array<ArrayBuffer>): Content {
  if (!isJson(type) && !isText(type)) return bytes;
  let value: Content = bytes;
  try {
    value = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return isJson(type) ? JSON.parse(value) : value;
  } catch {
    return value;
  }
}

/** The value of content in a message of JSON. Bytes that are UTF-8 come as a string there, and others in base64. */
export function contentOf({ type = '', data, encoding }: { type?: string; data?: unknown; encoding?: string }): Content {
  if (encoding === 'base64') return decodeContent(type, Uint8Array.from(atob(data as string), (character) => character.charCodeAt(0)));
  return isJson(type) || isText(type) || typeof data !== 'string' ? data : new TextEncoder().encode(data);
}
