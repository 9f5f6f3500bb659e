//! Commits events: creates the streams that are missing, then appends to all streams of a log with one command.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use encke_clock::Now;
use encke_stream::{Append, Command, Create, Data, Outcome, Stream, Target, home, log_of};
use serde_json::Value;

use super::answer::respond;
use crate::action::{Action, OnChange};
use crate::problem::unexpected;
use crate::pusher::app::App;
use crate::pusher::channel_stream::{ChannelStream, MEDIA, check_created};
use crate::pusher::context::PusherContext;
use crate::response::Response;
use crate::streams::load;

/// An event for one channel.
#[derive(Debug)]
pub(super) struct ChannelEvent {
    /// The name of the channel's stream.
    stream: String,
    record: Vec<u8>,
}

/// What is still to be committed of a request. Each commit is a step.
#[derive(Debug)]
struct Publication {
    creates: Vec<Create>,
    series: Vec<Vec<Append>>,
    /// The streams that there were, which stay in memory until all is committed.
    _found: Vec<Arc<Stream>>,
    step: PublicationStep,
    told: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublicationStep {
    Creation,
    Appends,
}

impl ChannelEvent {
    pub(super) fn new(app: &App, channel: &str, record: &[u8]) -> Self {
        ChannelEvent {
            stream: app.stream(channel),
            record: record.to_vec(),
        }
    }
}

/// Commits events. `told` is what the response says; the body is the request's, in case that it must wait.
pub(super) fn publish(
    context: &PusherContext,
    app: &App,
    events: Vec<ChannelEvent>,
    (told, body): (Value, Vec<u8>),
    now: Now,
) -> Result<Action, Response> {
    let streams = &context.streams;
    let mut creates = BTreeMap::new();
    let mut found = Vec::new();
    let mut by_log: BTreeMap<usize, Vec<Append>> = BTreeMap::new();
    let mut checked = BTreeSet::new();
    for event in &events {
        if checked.insert(event.stream.as_str()) {
            streams.check_name(&event.stream)?;
        }
    }
    for ChannelEvent {
        stream: name,
        record,
    } in events
    {
        let log = match ChannelStream::find(streams, app, &name, now)? {
            ChannelStream::Unknown => return Ok(load(&name, body)),
            ChannelStream::Missing(create) => {
                creates.insert(name.clone(), *create);
                home(&name, streams.views.logs())
            }
            ChannelStream::Found(stream) => {
                let log = log_of(stream.no);
                found.push(stream);
                log
            }
        };
        let target = Target::Read {
            name: name.into(),
            media: MEDIA.into(),
        };
        by_log.entry(log).or_default().push(Append {
            data: Data {
                bytes: record,
                units: 1,
            },
            ..Append::to(target)
        });
    }
    let publication = Publication {
        creates: creates.into_values().collect(),
        series: by_log.into_values().collect(),
        _found: found,
        step: PublicationStep::Creation,
        told,
    };
    Ok(Box::new(publication).go_on())
}

impl Publication {
    fn go_on(mut self: Box<Self>) -> Action {
        if let Some(create) = self.creates.pop() {
            return Action::Change(Command::Create(create), self);
        }
        self.step = PublicationStep::Appends;
        let Some(mut series) = self.series.pop() else {
            return Action::Respond(respond(&self.told));
        };
        let command = match series.len() {
            1 => Command::Append(series.remove(0)),
            _ => Command::Series(series),
        };
        Action::Change(command, self)
    }
}

impl OnChange for Publication {
    fn changed(self: Box<Self>, outcome: Outcome, _now: Now) -> Action {
        let judged = match (self.step, &outcome) {
            (PublicationStep::Creation, outcome) => check_created(outcome),
            (PublicationStep::Appends, Outcome::Appended { .. }) => Ok(()),
            (PublicationStep::Appends, other) => Err(unexpected(other)),
        };
        match judged {
            Ok(()) => self.go_on(),
            Err(refused) => Action::Respond(refused),
        }
    }
}
