// A page of the AI SDK in a thread of its own: it reads the answer at `workerData.streamUrl`, and sends the chunks and the error. As in a browser,
// a rejection that nothing handles ends nothing: the package leaves one at a cut.

import { parentPort, workerData } from 'node:worker_threads';
import { createDurableChatTransport } from '@durable-streams/aisdk-transport';

process.on('unhandledRejection', () => {});

const fetchClient = async () => Response.json({ streamUrl: workerData.streamUrl });
const transport = createDurableChatTransport({ api: 'http://app.example/api/chat', fetchClient });
try {
  for await (const chunk of await transport.reconnectToStream({ chatId: 'chat' })) parentPort.postMessage({ chunk });
  parentPort.postMessage({ end: true });
} catch ({ message }) {
  parentPort.postMessage({ error: message });
}
