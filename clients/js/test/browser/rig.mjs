// A server, a browser, and the files of the package over HTTP, for the tests of tabs.

import { launchChromium } from '../../../../tests/web/browser/chromium.mjs';
import { serve } from '../../example/serve.mjs';
import { Server } from '../server.mjs';

export async function startRig() {
  const [server, browser, files] = await Promise.all([Server.start(), launchChromium(), serve(0)]);
  const pageUrl = (path) => `http://127.0.0.1:${files.address().port}/${path}`;
  const end = async () => {
    await browser.close();
    files.closeAllConnections();
    files.close();
    await server.end();
  };
  return { server, browser, pageUrl, end };
}
