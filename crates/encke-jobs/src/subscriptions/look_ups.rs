//! The thread that looks streams up for the subscriptions.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use encke_mailbox::Receiver;
use encke_stream::{Fetch, StreamState};
use encke_subscriptions::{Glob, LookUpError, SubscribedStreams};

use crate::dispatcher_mailbox::DispatcherSender;
use crate::message::DispatcherMessage;

/// Streams to look up.
#[derive(Debug)]
pub(crate) struct LookUp {
    /// The machine's number of it.
    pub(crate) number: u64,
    /// The names. Most of them may be free.
    pub(crate) streams: Vec<Arc<str>>,
    /// The pattern.
    pub(crate) pattern: Option<Glob>,
    /// With more streams than this that the pattern matches, the look-up fails.
    pub(crate) matches_max: usize,
}

/// Looks streams up until the dispatcher ends.
pub(crate) fn look_up_all(
    mut look_ups: Receiver<LookUp>,
    sender: &DispatcherSender,
    streams: &dyn SubscribedStreams,
) {
    while let Ok(look_up) = look_ups.recv() {
        look_up.carry_out(sender, streams);
        look_ups.handled(1);
    }
}

impl LookUp {
    /// Looks the streams up and reports them.
    pub(crate) fn carry_out(&self, sender: &DispatcherSender, streams: &dyn SubscribedStreams) {
        let found = self.find(streams);
        sender.put(DispatcherMessage::Found(self.number, found));
    }

    fn find(&self, streams: &dyn SubscribedStreams) -> Result<Vec<StreamState>, LookUpError> {
        let read = |fetch: &Fetch| streams.read(fetch);
        let mut found = BTreeMap::new();
        for name in &self.streams {
            let Some(stream) = streams.find(name).map_err(LookUpError::Failed)? else {
                continue;
            };
            let state = StreamState::of(&stream, &read).map_err(LookUpError::Failed)?;
            found.extend(state.map(|state| (state.no, state)));
        }
        if let Some(pattern) = &self.pattern {
            let mut matches = 0;
            let mut failed = None;
            let wanted = |name: &str| pattern.matches(name);
            let mut each = |stream: &encke_stream::Stream| {
                match StreamState::of(stream, &read) {
                    Ok(Some(state)) => {
                        matches += 1;
                        found.insert(state.no, state);
                    }
                    Ok(None) => {}
                    Err(reason) => failed = Some(LookUpError::Failed(reason)),
                }
                if matches > self.matches_max {
                    failed = Some(LookUpError::TooMany);
                }
                match failed {
                    None => ControlFlow::Continue(()),
                    Some(_) => ControlFlow::Break(()),
                }
            };
            streams
                .each(&pattern.prefix(), &wanted, &mut each)
                .map_err(LookUpError::Failed)?;
            if let Some(failed) = failed {
                return Err(failed);
            }
        }
        Ok(found.into_values().collect())
    }
}
