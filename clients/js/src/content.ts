/** What a job or a result holds: JSON, a string of any `text/*` type, or bytes. */
export type Content = any;

const isJson = (type: string): boolean => /^application\/json\b/i.test(type);

/** The body and the content type of a value. Strings are `text/plain` and bytes `application/octet-stream` unless another type is given. */
export function encodeContent(value: Content, contentType?: string): { body?: BodyInit; type: string } {
  const isBytes = value instanceof Uint8Array || value instanceof ArrayBuffer;
  const type = contentType ?? (isBytes ? 'application/octet-stream' : typeof value === 'string' ? 'text/plain' : 'application/json');
  if (value === undefined) return { type };
  return { body: isJson(type) ? JSON.stringify(value) : (value as BodyInit), type };
}

/** The value of a body. */
export async function readContent(response: Response): Promise<Content> {
  const type = response.headers.get('Content-Type') ?? '';
  if (isJson(type)) return response.json();
  return type.startsWith('text/') ? response.text() : new Uint8Array(await response.arrayBuffer());
}
