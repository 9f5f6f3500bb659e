//! The thread that sends spans to a collector, by OTLP over HTTP.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_client::{ClientRules, client};
use encke_threads::{spawn_restarting, wait_for_end};
use ureq::Agent;

use crate::otlp;
use crate::sink::{SpanCounts, SpanQueue};
use crate::span::TraceSpan;

/// Where spans go.
#[derive(Clone)]
pub struct CollectorSettings {
    /// The URL that takes spans, such as `http://127.0.0.1:4318/v1/traces`.
    pub url: String,
    /// Header fields of each request. They may hold secrets.
    pub headers: Vec<(String, String)>,
    /// The rules of requests.
    pub client: ClientRules,
    /// The name of this program among others.
    pub service: String,
}

/// The running thread.
pub struct SpanExporter {
    thread: JoinHandle<()>,
    stop: mpsc::Sender<()>,
}

struct Exporter {
    settings: CollectorSettings,
    /// It is made in the thread, because reading the roots of the system takes long.
    agent: Option<Agent>,
    counts: Arc<SpanCounts>,
    stopped: mpsc::Receiver<()>,
    is_stopping: bool,
    is_failing: bool,
}

impl SpanExporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn start(queue: SpanQueue, settings: CollectorSettings) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let SpanQueue { mut spans, counts } = queue;
        let mut exporter = Exporter {
            agent: None,
            settings,
            counts,
            stopped,
            is_stopping: false,
            is_failing: false,
        };
        let thread = spawn_restarting("traces", move || exporter.run(&mut spans))?;
        Ok(SpanExporter { thread, stop })
    }

    /// Exports what waits, and ends the thread; spans that the collector has not taken within this time are lost. False if the thread
    /// panicked.
    pub fn stop(self, wait_max: Duration) -> bool {
        drop(self.stop);
        wait_for_end(self.thread, wait_max).unwrap_or_else(|| {
            tracing::warn!("the collector of traces does not respond; the last spans are lost");
            true
        })
    }
}

impl Exporter {
    fn run(&mut self, spans: &mut encke_mailbox::Receiver<TraceSpan>) {
        let mut batch = Vec::new();
        while !self.is_stopping {
            // The first span wakes the thread; those that follow within the delay go with it.
            match spans.recv_timeout(LOOK_EVERY) {
                Ok(None) => {
                    self.notice_stop(Duration::ZERO);
                    continue;
                }
                Ok(Some(first)) => batch.push(first),
                Err(_) => return,
            }
            self.notice_stop(DELAY);
            spans.drain(&mut batch);
            self.export_all(&mut batch);
        }
        spans.drain(&mut batch);
        self.export_all(&mut batch);
    }

    /// Waits this long for a stop.
    fn notice_stop(&mut self, wait: Duration) {
        let stopped = self.stopped.recv_timeout(wait);
        self.is_stopping |= stopped == Err(mpsc::RecvTimeoutError::Disconnected);
    }

    fn export_all(&mut self, spans: &mut Vec<TraceSpan>) {
        for some in spans.chunks(SPANS_PER_REQUEST) {
            let count = some.len() as u64;
            let counter = match self.export(some) {
                Ok(()) => {
                    if self.is_failing {
                        tracing::info!("the collector takes traces again");
                    }
                    self.is_failing = false;
                    &self.counts.exported
                }
                Err(why) => {
                    if !self.is_failing {
                        let url = &self.settings.url;
                        tracing::warn!(
                            url,
                            why,
                            "traces can't be exported; they are dropped until they can"
                        );
                    }
                    self.is_failing = true;
                    &self.counts.export_failed
                }
            };
            counter.fetch_add(count, Ordering::Relaxed);
        }
        spans.clear();
    }

    /// Sends spans until the collector takes them, an attempt has said that others are in vain, or the time for attempts is over.
    fn export(&mut self, spans: &[TraceSpan]) -> Result<(), String> {
        let body = otlp::encode(&self.settings.service, spans);
        let until = Instant::now() + ATTEMPTS_WITHIN;
        let mut pause = FIRST_PAUSE;
        loop {
            let why = match self.post(&body) {
                Ok(200..300) => return Ok(()),
                // What OTLP has repeated (section "Retryable Response Codes").
                Ok(status @ (429 | 502 | 503 | 504)) => format!("status {status}"),
                Ok(status) => return Err(format!("status {status}")),
                Err(error) => error.to_string(),
            };
            // While the collector fails, one attempt says whether it still does. At a stop there is no time for others.
            if self.is_failing || self.is_stopping || Instant::now() + pause > until {
                return Err(why);
            }
            self.notice_stop(pause);
            pause *= 2;
        }
    }

    fn post(&mut self, body: &[u8]) -> Result<u16, ureq::Error> {
        let agent = self
            .agent
            .get_or_insert_with(|| agent(&self.settings.client));
        let request = agent.post(&self.settings.url);
        let request = request.header("Content-Type", "application/x-protobuf");
        let headers = self.settings.headers.iter();
        let request = headers.fold(request, |request, (name, value)| {
            request.header(name, value)
        });
        let mut response = request.send(body)?;
        let status = response.status().as_u16();
        // The connection can be used again when its response is read.
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
        let _ = body.read_to_vec();
        Ok(status)
    }
}

fn agent(rules: &ClientRules) -> Agent {
    let config = rules.config().timeout_global(Some(REQUEST_WITHIN));
    client(config.build())
}

/// Spans of one request to the collector.
const SPANS_PER_REQUEST: usize = 512;

/// How long the first span waits for others.
const DELAY: Duration = Duration::from_millis(200);

/// Time between two looks at whether the server stops, while there are no spans.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time for one request to the collector.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);

/// Time for all attempts to export the same spans.
const ATTEMPTS_WITHIN: Duration = Duration::from_secs(10);

const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// What is read of a response.
const RESPONSE_BYTES_MAX: u64 = 64 << 10;
