/**
 * The name of a stream below a prefix. Ids that are names stay as they are, slashes included; a segment that Encke refuses, or takes as a pattern, begins
 * with `~`, and so does one that begins with `~` already. Different ids have different names.
 */
export function streamName(prefix: string, id: string): string {
  const segments = id.split('/').map((segment) => (/^(\.{0,2}|\*{1,2}|~.*)$/s.test(segment) ? `~${segment}` : segment));
  return [prefix, ...segments].join('/');
}
