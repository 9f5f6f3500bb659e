export const isJson = (type: string): boolean => /^application\/json\b/i.test(type);

/**
 * The body of a request, by its content type: JSON of any value; otherwise a string, bytes or a `Blob`. Bytes are copied, because the caller
 * may fill its buffer again while the request waits or is repeated.
 */
export function encodeBody(data: unknown, type: string): BodyInit {
  if (isJson(type)) {
    const json = JSON.stringify(data);
    if (json !== undefined) return json;
  } else if (typeof data === 'string') {
    return data;
  } else if (ArrayBuffer.isView(data)) {
    // Of its own `slice` a Buffer of Node returns a view.
    return new Uint8Array(data.buffer, data.byteOffset, data.byteLength).slice() as Uint8Array<ArrayBuffer>;
  } else if (/\[object (Shared)?ArrayBuffer\]/.test(tagOf(data))) {
    return new Uint8Array(data as ArrayBuffer).slice();
  } else if (/\[object (Blob|File)\]/.test(tagOf(data))) {
    return data as Blob;
  }
  throw new TypeError(`data of the type ${type} is ${isJson(type) ? 'a value of JSON' : 'a string, bytes or a Blob'}, not ${tagOf(data)}`);
}

/** Its length; of a string the least that it has in UTF-8. */
export const bytesOf = (body: BodyInit | null | undefined): number => {
  const { length, byteLength, size } = (body ?? '') as { length?: number; byteLength?: number; size?: number };
  return byteLength ?? size ?? length ?? 0;
};

/** Its kind, also of an object of another realm, such as one of a test's DOM. */
const tagOf = (data: unknown): string => Object.prototype.toString.call(data);
