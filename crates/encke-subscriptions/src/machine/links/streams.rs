//! What commits of streams change of the links.

use encke_stream::{Offset, StreamNo, StreamState};

use super::Links;
use super::link::Link;

impl Links {
    /// A stream has changed that has a link, or gets one, because the pattern includes it: then what it has is pending. With
    /// `is_event` the change is the server's own, and not pending unless something before it is.
    pub(crate) fn changed(&mut self, state: &StreamState, is_event: bool) {
        let StreamState {
            no, begin, tail, ..
        } = *state;
        let number = match self.by_path.get(&*state.name) {
            Some(number) => *number,
            None => self.insert(Link::new(&state.name)),
        };
        self.unwritten_if(number, |link| {
            let is_new = link.stream != Some(no);
            if is_new {
                link.stream = Some(no);
                link.begin = begin;
                link.acked = begin;
                link.tail = begin;
            }
            let follows = is_event && !link.is_pending() && tail > link.tail;
            link.tail = link.tail.max(tail);
            if follows {
                link.acked = link.tail;
            }
            is_new || follows
        });
    }

    /// Compares a link of the journal with the stream that has its name after a start.
    pub(crate) fn compare(&mut self, state: &StreamState) {
        let StreamState {
            no, begin, tail, ..
        } = *state;
        let Some(number) = self.by_path.get(&*state.name).copied() else {
            return self.changed(state, false);
        };
        self.unwritten_if(number, |link| {
            link.tail = tail;
            let acked = match link.stream == Some(no) {
                // A crash can lose records that were acknowledged before they were durable.
                true => link.acked.min(tail).max(begin),
                false => begin,
            };
            let is_new = link.stream != Some(no) || acked != link.acked;
            link.stream = Some(no);
            link.acked = acked;
            is_new
        });
    }

    /// A stream has ended. A link by its name waits for the next stream of that name, any other is gone.
    pub(crate) fn ended(&mut self, path: &str, no: StreamNo) {
        if let Some(number) = self.by_path.get(path).copied() {
            self.end(number, Some(no));
        }
    }

    /// The stream of a link does not exist after a start.
    pub(crate) fn missing(&mut self, number: u32) {
        let stream = self.links.get(&number).and_then(|link| link.stream);
        self.end(number, stream);
    }

    fn end(&mut self, number: u32, stream: Option<StreamNo>) {
        match self.links.get(&number) {
            Some(link) if link.stream == stream && link.explicit => {
                self.unwritten_if(number, |link| {
                    link.acked = Offset::START;
                    link.tail = Offset::START;
                    link.stream.take().is_some()
                });
            }
            Some(link) if link.stream == stream => {
                self.remove(number);
                self.removed.push(number);
            }
            _ => {}
        }
    }
}
