//! Characters of text that a subscriber of several streams lacks the end of: a record ended inside them, and nothing of them is
//! sent before their rest.

use encke_clock::WallTime;
use encke_log::Sequence;
use encke_protocol::long_record::RecordFacts;
use encke_protocol::{AheadStream, CutCharacter};
use encke_stream::{Item, Offset};

/// The characters of a feed, which change with its positions.
#[derive(Debug, Default)]
pub(crate) struct WithheldCharacters {
    changes: Vec<WithheldCharacter>,
    /// Streams that have ended: what is withheld of another one keeps the client's position before what it has of them.
    ended: Vec<AheadStream>,
}

/// What is withheld of a stream from a record on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WithheldCharacter {
    /// The stream's place in the request.
    pub(crate) place: u8,
    /// The record.
    pub(crate) since: Sequence,
    /// When it was decided.
    pub(crate) time: WallTime,
    /// The beginning of a character; empty where nothing is withheld any more.
    pub(crate) character: CutCharacter,
    /// The position before it, which is the client's.
    pub(crate) at: Offset,
}

/// What becomes of a record of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextRecord {
    /// What was withheld before it, and is sent with it.
    pub(crate) before: CutCharacter,
    /// What is withheld at its end.
    pub(crate) behind: CutCharacter,
    /// Nothing of it is sent, because all of it is withheld.
    pub(crate) is_withheld: bool,
    /// What is withheld from it on, if that changes.
    pub(crate) change: Option<WithheldCharacter>,
}

impl WithheldCharacters {
    /// Nothing is withheld, and the client has more of these streams than its position says. None: there are none.
    pub(crate) fn of_ended(ended: Vec<AheadStream>) -> Option<Self> {
        (!ended.is_empty()).then_some(WithheldCharacters {
            changes: Vec::new(),
            ended,
        })
    }

    pub(crate) fn ended(&self) -> &[AheadStream] {
        &self.ended
    }

    pub(crate) fn note_end(&mut self, stream: AheadStream) {
        self.ended.push(stream);
    }

    /// What is withheld of the stream at a place from a client that has got as far as `after` in its log.
    pub(crate) fn find(&self, place: u8, after: Sequence) -> Option<&WithheldCharacter> {
        let latest = self.latest(place, after)?;
        (!latest.character.is_empty()).then_some(latest)
    }

    /// Notes a change behind the client's present position in the log.
    pub(crate) fn note(&mut self, change: WithheldCharacter, after: Sequence) {
        let present = self.latest(change.place, after).copied();
        // A client may be left before the change. Of what was before, only the present state matters.
        self.changes
            .retain(|one| one.place != change.place || Some(*one) == present);
        self.changes.push(change);
    }

    /// Forgets a stream that has ended.
    pub(crate) fn forget(&mut self, place: u8) {
        self.changes.retain(|one| one.place != place);
    }

    fn latest(&self, place: u8, after: Sequence) -> Option<&WithheldCharacter> {
        let mut of_stream = self.changes.iter();
        let of_stream = of_stream
            .by_ref()
            .filter(|one| one.place == place && one.since <= after);
        of_stream.max_by_key(|one| one.since)
    }
}

impl WithheldCharacter {
    /// The withheld character behind a long record of the stream at a place, if the record changes it. `before` was withheld before.
    pub(crate) fn behind(
        facts: &RecordFacts,
        before: CutCharacter,
        since: Sequence,
        place: u8,
    ) -> Option<Self> {
        let changes = !before.is_empty() || !facts.withheld.is_empty();
        changes.then_some(WithheldCharacter {
            place,
            since,
            time: facts.time,
            character: facts.withheld,
            at: facts.end,
        })
    }
}

impl TextRecord {
    /// A record of the stream at a place, with what was withheld before it.
    pub(crate) fn new(
        item: &Item<'_>,
        sequence: Sequence,
        place: u8,
        withheld: Option<&WithheldCharacter>,
    ) -> Self {
        let before = withheld.map(|one| one.character).unwrap_or_default();
        let data = item.part();
        let behind = before.following(data);
        let cut = behind.as_bytes().len();
        let at = match withheld {
            // It began in an earlier record, and is still not complete.
            Some(withheld) if cut > data.len() => withheld.at,
            _ => item.position_before(cut),
        };
        let changes = !before.is_empty() || !behind.is_empty();
        TextRecord {
            before,
            behind,
            is_withheld: cut == before.as_bytes().len() + data.len(),
            change: changes.then_some(WithheldCharacter {
                place,
                since: sequence,
                time: item.time,
                character: behind,
                at,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(data: &[u8], sequence: Sequence) -> Item<'_> {
        Item {
            data,
            skip: 0,
            take: data.len() as u32,
            end: Offset::behind(sequence),
            time: WallTime::default(),
        }
    }

    #[test]
    fn a_character_is_withheld_until_its_rest_comes() {
        let mut all = WithheldCharacters::default();
        let mut sent = Vec::new();
        for (sequence, data) in [(5, &b"ab\xe2"[..]), (7, b"\x82"), (9, b"\xac"), (11, b"c")] {
            let item = item(data, sequence);
            let record = TextRecord::new(&item, sequence, 1, all.find(1, sequence - 1));
            let bytes = [record.before.as_bytes(), data].concat();
            let bytes = &bytes[..bytes.len() - record.behind.as_bytes().len()];
            assert_eq!(bytes.is_empty(), record.is_withheld);
            sent.push(bytes.to_vec());
            if let Some(change) = record.change {
                all.note(change, sequence - 1);
            }
            let at = all.find(1, sequence).map(|one| one.at);
            let inside = Offset {
                sequence: 4,
                units: 2,
            };
            assert_eq!(at, (sequence < 9).then_some(inside), "{sequence}");
            assert_eq!(all.find(0, sequence), None);
            assert_eq!(all.find(1, 4), None, "the client may be left there");
        }
        assert_eq!(sent, [&b"ab"[..], b"", "€".as_bytes(), b"c"]);
    }

    #[test]
    fn only_the_present_and_the_next_state_are_kept() {
        let mut all = WithheldCharacters::default();
        for sequence in 1..100 {
            let record = TextRecord::new(&item(b"\xe2", sequence), sequence, 0, None);
            all.note(record.change.unwrap(), sequence - 1);
            assert!(all.changes.len() <= 2);
        }
        all.forget(0);
        assert!(all.changes.is_empty());
    }
}
