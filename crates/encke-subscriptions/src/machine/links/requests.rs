//! What requests change of the links: it counts when the journal has it.

use super::Links;
use super::link::{Link, LinkRequest};
use crate::entry::StoredLink;
use encke_stream::StreamState;

impl Links {
    /// Follows a stream by its name, for a request that is not in the journal yet. False: it is followed by its name already.
    pub(crate) fn propose(&mut self, path: &str) -> bool {
        let Some(number) = self.number(path) else {
            self.insert(Link {
                explicit: true,
                request: LinkRequest::Link,
                ..Link::new(path)
            });
            return true;
        };
        let Some(link) = self.links.get_mut(&number).filter(|link| !link.explicit) else {
            return false;
        };
        link.request = LinkRequest::Name;
        self.set_explicit(number, true);
        true
    }

    /// The links that a request asks for, as they will be in the journal.
    pub(crate) fn proposed(&self) -> Vec<StoredLink> {
        let links = self.links.iter();
        let links = links.filter(|(_, link)| link.request != LinkRequest::None);
        let links = links.map(|(number, link)| StoredLink {
            explicit: link.explicit,
            ..link.stored(*number)
        });
        links.collect()
    }

    /// The log has refused what was proposed. A stream that the pattern includes has got its first records since, or it would have had a
    /// link before.
    pub(crate) fn withdraw(&mut self, is_matched: impl Fn(&str) -> bool) {
        for number in self.numbers() {
            let Some(link) = self.links.get(&number) else {
                continue;
            };
            let stays = match link.request {
                LinkRequest::None => continue,
                LinkRequest::Name => link.stream.is_some(),
                LinkRequest::Link => link.tail > link.begin && is_matched(&link.path),
            };
            if link.request == LinkRequest::Link {
                self.update(number, |link| link.acked = link.begin);
            } else if !stays {
                self.removed.push(number);
            }
            match stays {
                true => self.set_implicit(number),
                false => self.remove(number),
            }
        }
    }

    /// A link stays by the pattern alone.
    pub(crate) fn set_implicit(&mut self, number: u32) {
        self.set_explicit(number, false);
        self.unwritten_if(number, |link| {
            link.request = LinkRequest::None;
            true
        });
    }

    /// The stream of that name as a look-up has found it, for a request that begins to follow it: what it has now is done.
    pub(crate) fn found(&mut self, state: &StreamState) {
        let StreamState {
            no, begin, tail, ..
        } = *state;
        let number = match self.by_path.get(&*state.name) {
            Some(number) => *number,
            None => self.insert(Link {
                request: LinkRequest::Link,
                ..Link::new(&state.name)
            }),
        };
        self.update(number, |link| {
            // A commit may have been reported since.
            let later = link.stream == Some(no) && link.tail > tail;
            if !later {
                link.tail = tail;
            }
            link.stream = Some(no);
            link.begin = begin;
            link.acked = tail;
        });
    }

    /// What a request has asked for is in the journal.
    pub(crate) fn confirm(&mut self, links: &[StoredLink]) {
        for asked in links {
            self.set_explicit(asked.link, asked.explicit);
            if let Some(link) = self.links.get_mut(&asked.link) {
                if !link.explicit && link.stream.is_none() {
                    // The stream, which the pattern includes, has ended since.
                    self.remove(asked.link);
                    self.removed.push(asked.link);
                    continue;
                }
                link.request = LinkRequest::None;
                if link.stored(asked.link) != *asked {
                    // It has changed since.
                    self.unwritten.insert(asked.link);
                }
            }
        }
    }
}
