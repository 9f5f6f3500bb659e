// A client of pusher-js is taken as it is, and stays one.

import Pusher from 'pusher-js';
import { replay } from '@encke/pusher-replay';

const pusher: Pusher = replay(new Pusher('key', { cluster: '' }));
pusher.subscribe('news');
