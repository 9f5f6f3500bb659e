//! Looks up which offset of the destination an offset of the source has become.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use encke_client::ClientRules;

use crate::contents::contents;
use crate::copy_failure::CopyFailure;
use crate::http_server::HttpServer;
use crate::journal::{BEGINNING, JournalError, JournalReader, PositionPair};
use crate::protocol_stream::ProtocolStream;
use crate::server_access::ServerAccess;

/// The map of one stream, in the directory of an import's state.
#[derive(Debug)]
pub struct OffsetMap {
    /// What it was copied from.
    source: String,
    json: bool,
    pairs: Vec<PositionPair>,
}

/// What an offset of the source has become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MappedOffset {
    /// The offset of the destination that means the same.
    Exact(String),
    /// The source did not give this offset to the import. The nearest that it gave before it is this one: a client that continues there
    /// gets messages again that it has.
    Before {
        /// The nearest offset of the source.
        source: String,
        /// The offset of the destination that means the same as that.
        offset: String,
    },
    /// It is behind the end of what was copied, which this is.
    BeyondEnd {
        /// The last offset of the source that was copied.
        source: String,
    },
}

/// Why an offset can't be resolved with the source.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The credentials for the source can't be used.
    #[error("{0}")]
    Access(String),
    /// The source does not answer, or not with this offset.
    #[error("the source can't be asked: {0}")]
    Source(#[from] CopyFailure),
    /// What the source has behind the offset is more than was copied.
    #[error(
        "the source has more before its last copied offset than was copied; is it the same stream?"
    )]
    NotCopied,
}

impl OffsetMap {
    /// Reads the map of a stream. `None`: there is none in the directory.
    ///
    /// # Errors
    /// The file can't be read, or is damaged.
    pub fn read(directory: &Path, stream: &str) -> Result<Option<Self>, JournalError> {
        let Some(mut reader) = JournalReader::open(directory, stream)? else {
            return Ok(None);
        };
        let mut pairs = Vec::new();
        while let Some(pair) = reader.next()? {
            pairs.push(pair);
        }
        Ok(Some(OffsetMap {
            source: reader.head.source,
            json: reader.head.json,
            pairs,
        }))
    }

    /// The address of the stream that was copied.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Finds what an offset of the source has become.
    pub fn find(&self, offset: &str) -> MappedOffset {
        // They mean the same everywhere.
        if offset == BEGINNING || offset == NOW {
            return MappedOffset::Exact(offset.to_owned());
        }
        let mut before = PositionPair::beginning();
        let mut last = None;
        for pair in self.pairs.iter().filter(|pair| pair.is_mapped()) {
            if pair.source == offset {
                return MappedOffset::Exact(pair.offset.clone());
            }
            last = Some(&pair.source);
            // Offsets sort as texts (section 8).
            if *pair.source < *offset {
                before.clone_from(pair);
            }
        }
        match last {
            Some(last) if **last < *offset => MappedOffset::BeyondEnd {
                source: last.clone(),
            },
            _ => MappedOffset::Before {
                source: before.source,
                offset: before.offset,
            },
        }
    }

    /// Finds what an offset of the source has become that the source did not give to the import: by the number of messages, or
    /// bytes, that the source has between it and the last copied offset. `inside` makes the offset that is so many messages, or bytes,
    /// inside the last record before an offset of the destination.
    ///
    /// # Errors
    /// The source does not answer, or it does not have what was copied.
    pub fn resolve(
        &self,
        offset: &str,
        access: &ServerAccess,
        client: &ClientRules,
        inside: &dyn Fn(&str, u64) -> Option<String>,
    ) -> Result<MappedOffset, ResolveError> {
        let server = HttpServer::new(access, client, 1).map_err(ResolveError::Access)?;
        let source = ProtocolStream {
            server: Arc::new(server),
            url: self.source.clone(),
            query: None,
            patience: Duration::ZERO,
            progress: Arc::default(),
        };
        self.resolve_with(offset, &source, inside)
    }

    fn resolve_with(
        &self,
        offset: &str,
        source: &ProtocolStream,
        inside: &dyn Fn(&str, u64) -> Option<String>,
    ) -> Result<MappedOffset, ResolveError> {
        let found = self.find(offset);
        let mapped = self.pairs.iter().rev().find(|pair| pair.is_mapped());
        let (MappedOffset::Before { .. }, Some(last)) = (&found, mapped) else {
            return Ok(found);
        };
        // The stream may have grown since; what grew is the difference of two counts up to one end.
        let count = |from: &str| contents(source, from, self.json, u64::MAX).map(|all| all.units());
        let behind_last = count(&last.source)?;
        let behind = count(offset)?;
        let between = behind.saturating_sub(behind_last);
        let position = last
            .units(self.json)
            .checked_sub(between)
            .ok_or(ResolveError::NotCopied)?;
        Ok(self.at(position, inside).map_or(found, MappedOffset::Exact))
    }

    /// The offset of the destination at so many messages, or bytes.
    fn at(&self, position: u64, inside: &dyn Fn(&str, u64) -> Option<String>) -> Option<String> {
        if position == 0 {
            return Some(BEGINNING.to_owned());
        }
        let units = |pair: &PositionPair| pair.units(self.json);
        let behind = self.pairs.partition_point(|pair| units(pair) < position);
        let next = self.pairs.get(behind)?;
        if units(next) == position {
            return Some(next.offset.clone());
        }
        if next.found {
            return None;
        }
        let begin = behind
            .checked_sub(1)
            .and_then(|before| self.pairs.get(before));
        inside(&next.offset, position - begin.map_or(0, units))
    }
}

/// The offset of the end of a stream.
const NOW: &str = "now";

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, u64, u64)]) -> OffsetMap {
        let pair = |(source, behind, records): &(&str, u64, u64)| PositionPair {
            source: (*source).into(),
            behind: *behind,
            offset: format!("to-{records}"),
            records: *records,
            bytes: records * 10,
            found: false,
            closed: false,
        };
        OffsetMap {
            source: "http://old.example/a".into(),
            json: true,
            pairs: pairs.iter().map(pair).collect(),
        }
    }

    #[test]
    fn an_offset_that_the_source_gave_is_found_exactly() {
        let map = map(&[("0005", 0, 5), ("0005", 3, 8), ("0012", 0, 12)]);
        let exact = |offset: &str| MappedOffset::Exact(offset.into());
        assert_eq!(map.find("0005"), exact("to-5"));
        assert_eq!(map.find("0012"), exact("to-12"));
        assert_eq!(map.find("-1"), exact("-1"));
        assert_eq!(map.find("now"), exact("now"));
    }

    #[test]
    fn another_offset_gets_the_nearest_before_it() {
        let map = map(&[("0005", 0, 5), ("0012", 0, 12)]);
        let before = |source: &str, offset: &str| MappedOffset::Before {
            source: source.into(),
            offset: offset.into(),
        };
        assert_eq!(map.find("0003"), before("-1", "-1"));
        assert_eq!(map.find("0007"), before("0005", "to-5"));
        assert_eq!(
            map.find("0013"),
            MappedOffset::BeyondEnd {
                source: "0012".into()
            }
        );
    }

    #[test]
    fn a_position_is_found_inside_the_append_that_has_it() {
        let map = map(&[("0005", 0, 5), ("0005", 3, 8), ("0012", 0, 12)]);
        let inside = |offset: &str, units: u64| Some(format!("{units} into {offset}"));
        let at = |position| map.at(position, &inside);
        assert_eq!(at(0).unwrap(), "-1");
        assert_eq!(at(5).unwrap(), "to-5");
        assert_eq!(at(8).unwrap(), "to-8");
        assert_eq!(at(3).unwrap(), "3 into to-5");
        assert_eq!(at(6).unwrap(), "1 into to-8");
        assert_eq!(at(11).unwrap(), "3 into to-12");
        assert_eq!(at(13), None);
        let mut map = map;
        map.pairs[2].found = true;
        assert_eq!(map.at(11, &inside), None);
        assert_eq!(map.at(12, &inside).unwrap(), "to-12");
    }
}
