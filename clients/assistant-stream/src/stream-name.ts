import { ResumableStreamError } from 'assistant-stream/resumable';

/** The ids that stores of `assistant-stream` take. */
const ID = /^[A-Za-z0-9_.:-]{1,256}$/;

/** The name of a stream below a prefix. Encke refuses the segments `.` and `..`, and no other id. */
export function streamName(prefix: string, id: string): string {
  if (!ID.test(id)) throw new ResumableStreamError('invalid-id', `Invalid streamId: ${id} (must match ${ID})`);
  return `${prefix}/${/^\.\.?$/.test(id) ? `~${id}` : id}`;
}
