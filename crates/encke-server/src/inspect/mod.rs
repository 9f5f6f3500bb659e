//! Answers the questions of operators, on a thread of its own.
//!
//! The thread sleeps until a question comes, and wakes every 10 s for the figures of `history`. `connections` asks the shards,
//! a few slots at a time; `streams` reads the list of streams. What walks over all of them is kept by `recent_answers` for a hundred
//! times as long as it took: however many pages ask one question, the walks for it take about a hundredth of a core.

mod connections;
mod families;
mod history;
mod overview;
mod recent_answers;
mod responses;
mod sources;
mod stream_names;
mod streams;
mod usage;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use encke_access::Access;
use encke_mailbox::{Closed, Receiver};
use encke_net::{InspectTask, RecentRefusals, Surveyor};
use encke_protocol::{OperatorQuestion, Response};
use encke_threads::spawn_restarting;
use serde_json::{Value, json};

use self::connections::{SubscriberCounts, Survey};
use self::history::History;
use self::overview::Overview;
use self::recent_answers::{Kept, RecentAnswers};
use self::responses::{failure, json_body, json_response};
use self::stream_names::StreamNames;
use crate::archive::Archive;
use crate::metrics::ServerMetrics;

pub use self::sources::{Explain, Explanation, InspectionSources};

/// What the answers are made of.
pub(crate) struct InspectionContext {
    pub(crate) sources: InspectionSources,
    pub(crate) metrics: ServerMetrics,
    pub(crate) surveyor: Surveyor,
    pub(crate) refusals: RecentRefusals,
    pub(crate) archive: Archive,
    pub(crate) access: Option<Arc<Access>>,
}

/// The thread.
pub(crate) struct InspectorThread(JoinHandle<()>);

impl InspectorThread {
    /// Starts it. It ends when the last clone of the queue's [`Inspector`](encke_net::Inspector) is gone.
    pub(crate) fn start(
        mut tasks: Receiver<InspectTask>,
        context: InspectionContext,
    ) -> std::io::Result<InspectorThread> {
        let mut desk = Desk::new(context);
        let thread = spawn_restarting("inspector", move || {
            loop {
                let wait = desk.history.due_in(Instant::now());
                match tasks.recv_timeout(wait) {
                    Ok(Some(InspectTask { inquiry, reply })) => {
                        // Whatever becomes of it, the question has an answer.
                        let answer = AssertUnwindSafe(|| desk.answer(inquiry.question));
                        let answer = catch_unwind(answer).unwrap_or_else(|_| panicked());
                        reply.respond(answer);
                        tasks.handled(1);
                    }
                    Ok(None) => {}
                    Err(Closed) => return,
                }
                desk.sample();
            }
        })?;
        Ok(InspectorThread(thread))
    }

    /// Waits for its end. False: it panicked.
    pub(crate) fn join(self) -> bool {
        self.0.join().is_ok()
    }
}

/// The answer to a question that the thread has failed at.
fn panicked() -> Response {
    failure(
        500,
        "internal",
        "the question has failed; the server's log says why",
    )
}

/// The state of the thread.
struct Desk {
    context: InspectionContext,
    overview: Overview,
    history: History,
    recent: RecentAnswers,
    subscribers: Kept<SubscriberCounts>,
    names: StreamNames,
}

impl Desk {
    fn new(context: InspectionContext) -> Desk {
        Desk {
            context,
            overview: Overview::begin(),
            history: History::begin(Instant::now()),
            recent: RecentAnswers::default(),
            subscribers: Kept::default(),
            names: StreamNames::default(),
        }
    }

    fn sample(&mut self) {
        let now = Instant::now();
        if self.history.due_in(now).is_zero() {
            let figures = history::Figures::of(&self.context.metrics, &self.context.surveyor);
            self.history.add(now, encke_net::wall_time(), figures);
        }
    }

    fn answer(&mut self, question: OperatorQuestion) -> Response {
        match question {
            OperatorQuestion::Overview => json_response(&self.overview()),
            OperatorQuestion::Connections(query) => self.survey().list(&query),
            OperatorQuestion::Groups(query) => self.kept(OperatorQuestion::Groups(query), |desk| {
                desk.survey().groups(query)
            }),
            OperatorQuestion::Streams(query) => match streams::is_walk(&query) {
                false => match self.streams(&query) {
                    Ok(page) => json_response(&page),
                    Err(refused) => refused,
                },
                true => self.kept(OperatorQuestion::Streams(query.clone()), |desk| {
                    desk.streams(&query)
                }),
            },
            OperatorQuestion::Refusals(limit) => {
                let refusals = self.context.refusals.last(limit);
                json_response(&responses::refusals(&refusals))
            }
            OperatorQuestion::Usage => self.usage(),
            OperatorQuestion::History => json_body(self.history.to_json()),
            OperatorQuestion::Configuration => {
                json_response(&(self.context.sources.configuration)())
            }
            OperatorQuestion::Doctor => self.kept(OperatorQuestion::Doctor, |desk| {
                let report = (desk.context.sources.doctor)();
                report.map_err(|why| failure(500, "doctor_failed", &why))
            }),
            OperatorQuestion::Fleet => json_response(&(self.context.sources.fleet)()),
            OperatorQuestion::Explain(request) => {
                match self.context.sources.explain.explain(&request) {
                    Ok(explanation) => json_response(&json!({
                        "allowed": explanation.is_allowed,
                        "text": explanation.text,
                    })),
                    Err(why) => failure(503, "keys_unknown", &why),
                }
            }
            OperatorQuestion::Disconnect(name) => self.survey().disconnect(name),
        }
    }

    fn usage(&self) -> Response {
        let access = self.context.access.as_deref();
        let used =
            access.and_then(|access| usage::of(access, self.context.archive.loaders.views()));
        match used {
            Some(used) => json_response(&used),
            None => failure(
                409,
                "no_quotas",
                "there is no usage: no quotas are configured, which are the table access.quotas",
            ),
        }
    }

    fn overview(&self) -> Value {
        self.overview
            .now(&self.context.metrics, (self.context.sources.unready)())
    }

    fn survey(&mut self) -> Survey<'_> {
        Survey {
            surveyor: &self.context.surveyor,
            access: self.context.access.as_deref(),
            archive: &self.context.archive,
            names: &mut self.names,
        }
    }

    fn streams(&mut self, query: &encke_protocol::StreamQuery) -> Result<Value, Response> {
        let subscribers = self.subscribers()?;
        streams::list(&self.context.archive, query, &subscribers)
    }

    /// How many subscribers the streams have, found out now or not long ago.
    fn subscribers(&mut self) -> Result<Arc<SubscriberCounts>, Response> {
        let now = Instant::now();
        if let Some(counts) = self.subscribers.get(now) {
            return Ok(counts);
        }
        let counts = self.survey().subscribers()?;
        Ok(self.subscribers.keep(counts, (now, Instant::now())))
    }

    /// The answer to a question whose answer takes a walk: made now, or not long ago.
    fn kept(
        &mut self,
        question: OperatorQuestion,
        make: impl FnOnce(&mut Desk) -> Result<Value, Response>,
    ) -> Response {
        if let Some(answer) = self.recent.find(&question, Instant::now()) {
            return json_response(&answer);
        }
        let begun = Instant::now();
        let answer = match make(self) {
            Ok(answer) => answer,
            Err(refused) => return refused,
        };
        let answer = self.recent.keep(question, answer, (begun, Instant::now()));
        json_response(&answer)
    }
}
