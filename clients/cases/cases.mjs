// Reads cases.json, and compares the outcome of a play with the expectation of its case.

import { readFileSync } from 'node:fs';
import { isDeepStrictEqual } from 'node:util';
import { offsetOf } from './model.mjs';

/** The limit of a call, unless the case is about the limit. A busy machine does not reach it. */
const LIMIT_MS = 120_000;

/**
 * The cases for a client: `js` or `python`, without those with a call that it lacks. A case with `each` stands for one case for each
 * combination of its values.
 */
export function casesOf(client) {
  const { lacks, cases } = JSON.parse(readFileSync(new URL('cases.json', import.meta.url)));
  const has = ({ only = client, calls }) => only === client && !calls.some((call) => lacks[client][call.split(' ')[0]]);
  return cases.flatMap(combinations).filter(has).map((one) => ({ limitMs: LIMIT_MS, ...one, name: one.name.replace(/\r/g, 'CR').replace(/\n/g, 'LF') }));
}

function combinations({ each, ...one }) {
  if (!each) return [one];
  const [[name, values], ...others] = Object.entries(each);
  const rest = Object.fromEntries(others);
  return values.flatMap((value) => combinations({ ...fill(one, name, value), ...(others.length && { each: rest }) }));
}

/** Puts a value where the text is `{name}` alone, and its text where `{name}` is within others. */
function fill(part, name, value) {
  if (part === `{${name}}`) return value;
  if (typeof part === 'string') return part.replaceAll(`{${name}}`, typeof value === 'string' ? value : JSON.stringify(value));
  if (Array.isArray(part)) return part.map((item) => fill(item, name, value));
  if (part && typeof part === 'object') return Object.fromEntries(Object.entries(part).map(([key, item]) => [key, fill(item, name, value)]));
  return part;
}

/** The differences between a play and the expectation of its case, as texts. */
export function failuresOf({ calls, expect, isUnordered }, client, actual) {
  const { results, stored, jobs, seen, requests, elsewhere = 0 } = { ...expect, ...expect[client] };
  const failures = [];
  const check = (what, is, wanted) => {
    if (!matches(is, wanted)) failures.push(`${what}: ${JSON.stringify(is)}, expected ${JSON.stringify(wanted)}`);
  };
  if (results) {
    check('results', actual.results.length, results.length);
    for (const [index, wanted] of results.entries()) check(`result of "${calls[index]}"`, actual.results[index], wanted);
  }
  if (actual.results.some(({ error }) => error === 'not settled')) failures.push('a call has not settled');
  const order = (list) => (isUnordered ? [...list].sort() : list);
  if (stored) check('stored', order(actual.stored), order(stored));
  if (jobs !== undefined) check('jobs', actual.jobs, jobs);
  if (seen) check('requests', actual.seen, seen);
  if (requests && !(actual.seen.length >= requests[0] && actual.seen.length <= requests[1])) {
    failures.push(`${actual.seen.length} requests, expected ${requests.join(' to ')}: ${actual.seen.slice(0, 10)}`);
  }
  check('requests elsewhere', actual.elsewhere.length, elsewhere);
  if (actual.elsewhere.some(Boolean)) failures.push('a token has reached another origin');
  if (actual.ids > 1) failures.push(`${actual.ids} ids of producers at one stream`);
  return failures;
}

/** An object may have more members than are wanted. `a|b` allows two texts, and `@3` is the offset behind three records. */
function matches(is, wanted) {
  if (typeof wanted === 'string' && typeof is === 'string') {
    return wanted.split('|').some((text) => is === (text.startsWith('@') ? offsetOf(Number(text.slice(1))) : text));
  }
  if (wanted && typeof wanted === 'object' && !Array.isArray(wanted)) {
    return Boolean(is) && Object.entries(wanted).every(([name, value]) => matches(is[name], value));
  }
  return isDeepStrictEqual(is, wanted);
}
