/** The content of a job or a result: a value of JSON, a string of any `text/*` type, or bytes. */
export type Content = any;

const isJson = (type: string): boolean => /^\s*application\/json\b/i.test(type);
const isText = (type: string): boolean => /^\s*text\//i.test(type);
const tagOf = (value: unknown): string => Object.prototype.toString.call(value).slice(8, -1);
const isBlob = (value: unknown): value is Blob => /^(Blob|File)$/.test(tagOf(value));

/** A copy of the bytes of a buffer or of a view of one, also of another realm; `undefined` for other values. */
export function bytesOf(value: unknown): Uint8Array<ArrayBuffer> | undefined {
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice();
  return /^(Shared)?ArrayBuffer$/.test(tagOf(value)) ? new Uint8Array(value as ArrayBuffer).slice() : undefined;
}

/** The JSON of a value. `JSON.stringify` returns `undefined` for functions, and writes bytes, blobs, maps and sets as objects that lack their content. */
export function jsonOf(value: unknown): string {
  const text = JSON.stringify(value, (_, part: unknown) => {
    if (ArrayBuffer.isView(part) || /^((Shared)?ArrayBuffer|Blob|File|(Weak)?(Map|Set)|Promise)$/.test(tagOf(part))) throw notJson(part);
    return part;
  }) as string | undefined;
  if (text === undefined) throw notJson(value);
  return text;
}

/**
 * The body and the content type of a value, as it is at the time of the call. Bytes and blobs are sent as they are. Strings are `text/plain` and bytes
 * `application/octet-stream` unless another type is given; `undefined` is `null` in JSON.
 */
export async function encodeContent(value: Content, contentType?: string): Promise<{ body: BodyInit; type: string }> {
  const bytes = isBlob(value) ? new Uint8Array(await value.arrayBuffer()) : bytesOf(value);
  if (bytes) return { body: bytes, type: contentType || (value as Blob).type || 'application/octet-stream' };
  const type = contentType || (typeof value === 'string' ? 'text/plain' : 'application/json');
  if (isJson(type)) return { body: jsonOf(value ?? null), type };
  if (typeof value === 'string') return { body: value, type };
  throw new TypeError(`content of the type ${type} is a string or bytes, and not ${tagOf(value)}`);
}

/**
 * The value of content, by its type alone: JSON, a string for `text/*`, and bytes for any other type. JSON that cannot be parsed is a string, as the
 * server shows it.
 */
export function decodeContent(type: string, bytes: Uint8Array<ArrayBuffer>): Content {
  if (!isJson(type) && !isText(type)) return bytes;
  const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(bytes);
  if (isText(type)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** The value of content in a message of JSON. Bytes that are UTF-8 come as a string there, and others in base64. */
export function contentOf({ type = '', data, encoding }: { type?: string; data?: unknown; encoding?: string }): Content {
  if (encoding === 'base64') return decodeContent(type, Uint8Array.from(atob(data as string), (character) => character.charCodeAt(0)));
  return isJson(type) || isText(type) || typeof data !== 'string' ? data : new TextEncoder().encode(data);
}

const notJson = (value: unknown) => new TypeError(`JSON cannot carry a value of the type ${tagOf(value)}`);
