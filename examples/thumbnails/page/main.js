// Posts images as jobs, and shows the pool's public streams: the events and the results of jobs.

const encke = new URLSearchParams(location.search).get('encke') ?? 'http://127.0.0.1:4437';
const pool = `${encke}/v1/pool/thumbnails`;
const $ = (id) => document.getElementById(id);

/** What is known of each job: its state, its worker and its element. */
const jobs = new Map();
/** Jobs done, by worker; and who is there. */
const workers = new Map();

follow('events', (event) => {
  if (event.job !== undefined) move(event);
  else workerMoves(event);
});
follow('results', (result) => {
  const job = find(result.job);
  if (job.image || result.encoding !== 'base64') return;
  job.image = document.createElement('img');
  job.image.alt = `thumbnail of job ${result.job}`;
  job.image.src = `data:${result.type};base64,${result.data}`;
  job.element.append(job.image);
});
/** Dead letters by job: one may be there twice when the server died between two records. */
const letters = new Map();
follow('dead', ({ job, attempts, reason }) => {
  if (!letters.has(job)) letters.set(job, $('letters').appendChild(document.createElement('li')));
  letters.get(job).textContent = `#${job}, tried ${attempts} times: ${reason}`;
});

$('files').addEventListener('change', async () => {
  for (const file of $('files').files) await post(file);
});
$('samples').addEventListener('click', async () => {
  for (let number = 0; number < 12; number += 1) await post(await draw(number));
});

/** What each event makes of a job. */
const STATES = { posted: 'waiting', started: 'running', failed: 'running', waits: 'waiting', done: 'done', dead: 'dead' };

function move({ event, job: id, worker, attempt }) {
  const job = find(id);
  if (event === 'done') workers.set(worker, { ...workers.get(worker), done: (workers.get(worker)?.done ?? 0) + 1 });
  job.state = STATES[event] ?? job.state;
  job.element.dataset.state = job.state;
  job.words.textContent = [`#${id} ${job.state}`, worker && `by ${worker}`, attempt > 1 && `try ${attempt}`]
    .filter(Boolean)
    .join(', ');
  show();
}

function workerMoves({ event, worker }) {
  workers.set(worker, { ...workers.get(worker), here: event === 'joined' });
  show();
}

function show() {
  for (const state of ['waiting', 'running', 'done', 'dead']) {
    $(state).textContent = [...jobs.values()].filter((job) => job.state === state).length;
  }
  $('workers').replaceChildren(
    ...[...workers].map(([name, { here, done = 0 }]) => {
      const item = document.createElement('li');
      item.textContent = `${name}${here ? '' : ' (gone)'}: ${done}`;
      return item;
    }),
  );
}

function find(id) {
  if (!jobs.has(id)) {
    const element = document.createElement('li');
    const words = document.createElement('div');
    element.append(words);
    $('jobs').prepend(element);
    jobs.set(id, { element, words });
  }
  return jobs.get(id);
}

async function post(image) {
  const answer = await fetch(pool, { method: 'POST', headers: { 'Content-Type': image.type }, body: image });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
}

/** A random picture. */
function draw(number) {
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [640, 480];
  const brush = canvas.getContext('2d');
  for (let circle = 0; circle < 60; circle += 1) {
    brush.fillStyle = `hsl(${(number * 30 + circle * 3) % 360} 70% ${30 + circle / 2}%)`;
    brush.beginPath();
    brush.arc(Math.random() * 640, Math.random() * 480, 20 + Math.random() * 60, 0, 7);
    brush.fill();
  }
  return new Promise((resolve) => canvas.toBlob(resolve, 'image/png'));
}

/** Calls `each` for every message of a stream of the pool, from its beginning on, each once. */
function follow(what, each) {
  let offset = '-1';
  const open = () => {
    const source = new EventSource(`${encke}/v1/stream/pool/thumbnails/${what}?offset=${offset}&live=sse`);
    // Messages hold until the control event behind them says where they end.
    let messages = [];
    source.addEventListener('data', ({ data }) => messages.push(...JSON.parse(data)));
    source.addEventListener('control', ({ data }) => {
      messages.forEach(each);
      messages = [];
      offset = JSON.parse(data).streamNextOffset ?? offset;
    });
    source.addEventListener('error', () => {
      source.close();
      setTimeout(open, 500);
    });
  };
  open();
}
