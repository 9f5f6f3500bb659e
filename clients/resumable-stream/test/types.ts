// Compiles if the package has the types of `resumable-stream`.

import { createResumableStreamContext } from '@encke/resumable-stream';
import { createPubSub } from '@encke/resumable-stream/pubsub';
import type { Publisher, ResumableStreamContext, Subscriber } from 'resumable-stream/generic';

const base = 'http://127.0.0.1:4437';
export const context: ResumableStreamContext = createResumableStreamContext({ base, waitUntil: null, keyPrefix: 'answers' });
export const pubSub: { publisher: Publisher; subscriber: Subscriber } = createPubSub({ base });
