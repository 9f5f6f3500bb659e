export const isJson = (type: string): boolean => /^\s*application\/json\s*(;|$)/i.test(type);

/**
 * The body of a request, by its content type: a value of JSON, or a string. Bytes and blobs are sent as they are. Bytes are copied, because the caller
 * may fill its buffer again while the request waits or is repeated.
 */
export function encodeBody(data: unknown, type: string): BodyInit {
  const body = isBlob(data) ? data : copyOfBytes(data);
  if (body) return body;
  if (isJson(type)) return jsonOf(data);
  if (typeof data === 'string') return data;
  throw new TypeError(`data of the type ${type} is a string, bytes or a Blob, not ${tagOf(data)}`);
}

/** The bytes of a buffer or of a view of one, or `undefined` for other values. */
export function copyOfBytes(value: unknown): Uint8Array<ArrayBuffer> | undefined {
  // Of its own `slice` a Buffer of Node returns a view.
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice();
  return /^(Shared)?ArrayBuffer$/.test(tagOf(value)) ? new Uint8Array(value as ArrayBuffer).slice() : undefined;
}

/**
 * The JSON of a value. `JSON.stringify` returns `undefined` for functions, and writes objects that are neither plain, arrays nor of a `toJSON` (such as
 * maps, streams and errors) without their content, and bytes as objects of numbers.
 */
export function jsonOf(value: unknown): string {
  const text = JSON.stringify(value, function (this: any, key: string, part: unknown) {
    // `part` is behind `toJSON`, which a Buffer has, too.
    const whole = this[key];
    const isContainer = typeof whole !== 'object' || !whole || typeof whole.toJSON === 'function' || /^(Object|Array|Number|String|Boolean)$/.test(tagOf(whole));
    if (!isContainer || ArrayBuffer.isView(whole)) throw notJson(whole);
    return part;
  }) as string | undefined;
  if (text === undefined) throw notJson(value);
  return text;
}

export const isBlob = (value: unknown): value is Blob => /^(Blob|File)$/.test(tagOf(value));

/** The length of a body; of a string the least that it has in UTF-8. */
export const bytesOf = (body: BodyInit | null | undefined): number => {
  const { length, byteLength, size } = (body ?? '') as { length?: number; byteLength?: number; size?: number };
  return byteLength ?? size ?? length ?? 0;
};

/** The kind of a value, also of an object of another realm, such as one of a test's DOM. */
const tagOf = (value: unknown): string => Object.prototype.toString.call(value).slice(8, -1);

const notJson = (value: unknown) => new TypeError(`data is a value of JSON, and JSON has no ${tagOf(value)}`);
