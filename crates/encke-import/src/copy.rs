//! Copies one stream.

use std::io::{ErrorKind, Read};
use std::path::Path;

use crate::append_batch::{AppendBatch, BATCH_BYTES};
use crate::backoff::Backoff;
use crate::contents::contents;
use crate::copy_failure::CopyFailure;
use crate::destination::DestinationStream;
use crate::journal::{PositionPair, StreamJournal};
use crate::messages::{MESSAGE_BYTES_MAX, MessagesError, each_message};
use crate::protocol_stream::{ProtocolStream, SourcePage, StreamFacts};
use crate::stream_list::StreamTask;
use crate::surplus::Surplus;

/// A stream that is copied: how far it is, and what it takes to go on.
#[derive(Debug)]
pub(crate) struct StreamCopy {
    source: ProtocolStream,
    destination: DestinationStream,
    journal: StreamJournal,
    /// Where the part begins that was copied before this run.
    begin: PositionPair,
    /// Where the copy has come to. While the destination has a [`Surplus`], only its part for the source counts.
    position: PositionPair,
    /// The last line of the journal.
    written: PositionPair,
    media: Option<StreamMedia>,
    batch: AppendBatch,
    /// The records of the destination behind the position.
    surplus: Option<Surplus>,
    /// The records and bytes that this run has appended.
    appended: Appended,
}

/// What the source says of a stream when a copy begins.
#[derive(Clone, Debug)]
struct StreamMedia {
    content_type: String,
    json: bool,
}

/// What was appended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Appended {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
}

impl StreamCopy {
    /// Finds how far the stream is. Asks no server.
    pub(crate) fn find(
        task: &StreamTask,
        source: ProtocolStream,
        destination: ProtocolStream,
        directory: &Path,
    ) -> Result<Self, CopyFailure> {
        let (journal, copied) = StreamJournal::find(directory, task)?;
        let beginning = || (PositionPair::beginning(), PositionPair::beginning());
        let (begin, position) = copied.map_or_else(beginning, |part| (part.begin, part.end));
        Ok(StreamCopy {
            destination: DestinationStream::new(destination, &task.source),
            source,
            journal,
            begin,
            written: position.clone(),
            position,
            media: None,
            batch: AppendBatch::new(false),
            surplus: None,
            appended: Appended::default(),
        })
    }

    pub(crate) fn source(&self) -> &ProtocolStream {
        &self.source
    }

    pub(crate) fn destination(&self) -> &ProtocolStream {
        self.destination.stream()
    }

    pub(crate) fn position(&self) -> &PositionPair {
        &self.position
    }

    pub(crate) fn appended(&self) -> Appended {
        self.appended
    }

    /// Closes the file of the journal. The next line opens it again.
    pub(crate) fn close_journal(&mut self) {
        self.journal.close();
    }

    /// Whether both sides are closed, and the destination has everything.
    pub(crate) fn is_complete(&self) -> bool {
        self.position.closed
    }

    /// Copies everything up to the end that the source has, and closes the stream if the source is closed.
    pub(crate) fn catch_up(&mut self) -> Result<(), CopyFailure> {
        if self.is_complete() {
            return self.check_complete();
        }
        let facts = self.source.head()?.ok_or_else(|| CopyFailure::Protocol {
            url: self.source.url.clone(),
            why: "the source has no such stream".into(),
        })?;
        if self.media.is_none() {
            self.prepare(&facts)?;
        }
        let mut backoff = Backoff::new(self.source.patience);
        loop {
            let before = self.position.clone();
            match self.page(&facts) {
                Ok(true) => return Ok(()),
                Ok(false) => backoff.reset(),
                Err(error) => {
                    if self.position != before {
                        backoff.reset();
                    }
                    backoff.wait(error)?;
                    self.source.progress.retried();
                }
            }
        }
    }

    /// Copies what a response has, and closes the stream if the source is. Whether the source had nothing behind it.
    pub(crate) fn take(&mut self, mut page: SourcePage) -> Result<bool, CopyFailure> {
        let media = self.media.clone().ok_or_else(|| CopyFailure::Protocol {
            url: self.source.url.clone(),
            why: "the stream was not prepared".into(),
        })?;
        self.batch.clear();
        // What an attempt before has copied of the same page.
        let skip = self.position.behind;
        let left = match page.body.take() {
            Some(body) if media.json => self.take_messages(body, skip, &media)?,
            Some(body) => self.take_bytes(body, skip, &media)?,
            None => skip,
        };
        if left > 0 {
            // The page is shorter than the one that was begun before.
            self.position.source = page.next;
            self.position.behind = left;
            return Ok(page.up_to_date);
        }
        let units = self.position.behind + self.batch.units();
        self.source
            .check_advance(&self.position.source, &page.next, units)?;
        self.end_page(&page, &media)?;
        Ok(page.up_to_date)
    }

    /// Copies the next page. Whether the copy has reached the end of the source.
    fn page(&mut self, facts: &StreamFacts) -> Result<bool, CopyFailure> {
        let from = self.position.source.clone();
        let mut page = self.source.page(&from)?;
        // A cache may have the page from before.
        page.closed |= facts.closed && page.next == facts.tail;
        let tail = facts.tail.as_str();
        let up_to_date = self.take(page)?;
        if self.position.closed {
            return Ok(true);
        }
        let PositionPair {
            source: reached,
            behind,
            ..
        } = &self.position;
        // Offsets sort as texts (section 8). A cache may say that there is nothing more when there is.
        if up_to_date && reached.as_str() >= tail {
            if *behind > 0 {
                let unit = unit(facts.is_json());
                return Err(CopyFailure::Differs {
                    why: format!("the source has {behind} {unit} less than were copied of it"),
                });
            }
            return self.check_surplus_ended().map(|()| true);
        }
        if up_to_date || *reached == from {
            return Err(CopyFailure::Behind {
                url: self.source.url.clone(),
                tail: tail.to_owned(),
                reached: reached.clone(),
            });
        }
        Ok(false)
    }

    /// Creates the stream, or finds what the destination has of it.
    fn prepare(&mut self, facts: &StreamFacts) -> Result<(), CopyFailure> {
        let media = StreamMedia {
            content_type: facts.content_type.clone(),
            json: facts.is_json(),
        };
        let position = &self.position;
        if position.bytes > 0 && self.destination().head()?.is_none() {
            let (url, bytes) = (&self.destination().url, position.bytes);
            return Err(CopyFailure::Differs {
                why: format!(
                    "{bytes} bytes were copied by the state, and there is no {url}; to copy them again, use another directory for the state"
                ),
            });
        }
        let is_new = self.destination.prepare(facts)?;
        self.batch = AppendBatch::new(media.json);
        self.media = Some(media.clone());
        if is_new {
            self.destination
                .tail()
                .clone_into(&mut self.position.offset);
            return Ok(());
        }
        let behind = match self.destination.tail() == self.position.offset {
            true => None,
            false => {
                let offset = &self.position.offset;
                let behind = contents(self.destination(), offset, media.json, u64::MAX);
                Some(behind.map_err(|error| self.lost(offset, error))?)
            }
        };
        self.check_last_part(media.json)?;
        if let Some(behind) = behind {
            self.surplus = Some(Surplus::new(behind));
            self.end_surplus(&media)?;
        }
        Ok(())
    }

    /// The error when the destination can't be read behind an offset of the state.
    fn lost(&self, offset: &str, error: CopyFailure) -> CopyFailure {
        match error {
            CopyFailure::Refused {
                status: 400 | 404 | 410,
                ..
            } => CopyFailure::Differs {
                why: format!(
                    "the destination does not have offset {offset}, to which the state says that it was copied: {error}"
                ),
            },
            error => error,
        }
    }

    /// Compares the part that was copied last at both sides: a stream that was made anew can have the same offsets. Passes if one side has
    /// removed that part (410).
    fn check_last_part(&self, json: bool) -> Result<(), CopyFailure> {
        // Always the end of a page. At `-1` a retention gives no 410.
        let PositionPair { source, offset, .. } = &self.begin;
        let units = self.position.units(json) - self.begin.units(json);
        if units == 0 {
            return Ok(());
        }
        let there = contents(&self.source, source, json, units);
        let copied = contents(self.destination(), offset, json, units);
        let (there, copied) = match (there, copied) {
            (Err(CopyFailure::Refused { status: 410, .. }), _)
            | (_, Err(CopyFailure::Refused { status: 410, .. })) => return Ok(()),
            (there, copied) => (there?, copied.map_err(|error| self.lost(offset, error))?),
        };
        if there.units() == units && copied.hex() == there.hex() {
            return Ok(());
        }
        let (url, unit) = (&self.source.url, unit(json));
        Err(CopyFailure::Differs {
            why: format!(
                "the {units} {unit} behind offset {source} of {url} differ from the copied ones; was that stream made anew, or has a retention removed the beginning of the source or the copy?"
            ),
        })
    }

    /// Takes the messages of a page, but for the first `skip`. How many of these were not there.
    fn take_messages(
        &mut self,
        body: Box<dyn Read + Send>,
        skip: u64,
        media: &StreamMedia,
    ) -> Result<u64, CopyFailure> {
        let mut left = skip;
        let taken = each_message(body, MESSAGE_BYTES_MAX, &mut |message| {
            if left > 0 {
                left -= 1;
                return Ok(());
            }
            self.take_message(message, media)
        });
        let url = || self.source.url.clone();
        match taken {
            Ok(()) => Ok(left),
            Err(MessagesError::Taker(error)) => Err(error),
            Err(MessagesError::CutOff(why)) => Err(CopyFailure::CutOff { url: url(), why }),
            Err(MessagesError::NotJson(why)) => Err(CopyFailure::Protocol {
                url: url(),
                why: format!("the response is no array of messages: {why}"),
            }),
            Err(MessagesError::TooLarge) => Err(CopyFailure::Protocol {
                url: url(),
                why: format!("a message has more than {MESSAGE_BYTES_MAX} bytes"),
            }),
        }
    }

    fn take_message(&mut self, message: &str, media: &StreamMedia) -> Result<(), CopyFailure> {
        if let Some(surplus) = &mut self.surplus {
            surplus.message(message);
            self.advance(1, 1, message.len() as u64);
            return self.end_surplus(media);
        }
        if !self.batch.has_room(message) {
            self.flush(media)?;
        }
        self.batch.add_message(message);
        Ok(())
    }

    /// Takes the bytes of a page, but for the first `skip`. How many of these were not there.
    fn take_bytes(
        &mut self,
        mut body: Box<dyn Read + Send>,
        skip: u64,
        media: &StreamMedia,
    ) -> Result<u64, CopyFailure> {
        let mut left = skip;
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => return Ok(left),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(CopyFailure::CutOff {
                        url: self.source.url.clone(),
                        why: error.to_string(),
                    });
                }
            };
            let skipped = left.min(read as u64);
            left -= skipped;
            let mut bytes = &buffer[skipped as usize..read];
            while !bytes.is_empty() {
                let taken = self.take_some(bytes, media)?;
                bytes = &bytes[taken..];
            }
        }
    }

    /// Takes the first of some bytes: those that the destination has, or those that the batch has room for.
    fn take_some(&mut self, bytes: &[u8], media: &StreamMedia) -> Result<usize, CopyFailure> {
        if let Some(surplus) = &mut self.surplus {
            let taken = surplus.bytes(bytes);
            self.advance(taken as u64, 0, taken as u64);
            self.end_surplus(media)?;
            return Ok(taken);
        }
        if self.batch.is_full() {
            self.flush(media)?;
        }
        Ok(self.batch.add_bytes(bytes))
    }

    /// Appends the batch, and writes how far the copy has come inside the page.
    fn flush(&mut self, media: &StreamMedia) -> Result<(), CopyFailure> {
        self.append(media)?;
        self.write_down(media)
    }

    fn append(&mut self, media: &StreamMedia) -> Result<(), CopyFailure> {
        if self.batch.is_empty() {
            return Ok(());
        }
        self.destination
            .append(&media.content_type, self.batch.body())?;
        let (units, records, bytes) =
            (self.batch.units(), self.batch.records(), self.batch.bytes());
        self.batch.clear();
        self.advance(units, records, bytes);
        self.position.offset = self.destination.tail().to_owned();
        self.position.found = false;
        self.appended.records += records;
        self.appended.bytes += bytes;
        self.source.progress.copied(records, bytes);
        Ok(())
    }

    fn advance(&mut self, units: u64, records: u64, bytes: u64) {
        self.position.behind += units;
        self.position.records += records;
        self.position.bytes += bytes;
    }

    /// Appends what is left of a page, and goes on at the offset behind it.
    fn end_page(&mut self, page: &SourcePage, media: &StreamMedia) -> Result<(), CopyFailure> {
        self.append(media)?;
        self.position.source.clone_from(&page.next);
        self.position.behind = 0;
        if page.closed {
            self.check_surplus_ended()?;
            self.destination.close()?;
            self.position.closed = true;
        }
        match self.surplus {
            // The destination's offset for this position is unknown.
            Some(_) => Ok(()),
            None => self.write_down(media),
        }
    }

    fn write_down(&mut self, media: &StreamMedia) -> Result<(), CopyFailure> {
        if self.position != self.written {
            self.journal.append(&self.position, media.json)?;
            self.written.clone_from(&self.position);
        }
        Ok(())
    }

    /// Goes on by appending, if the source has had everything that the destination has.
    fn end_surplus(&mut self, media: &StreamMedia) -> Result<(), CopyFailure> {
        let Some(surplus) = &self.surplus else {
            return Ok(());
        };
        if !surplus.is_over(unit(media.json), &self.position.offset)? {
            return Ok(());
        }
        if !media.json && surplus.units() > 0 {
            // It is unknown how many appends that were.
            self.position.records += 1;
        }
        self.surplus = None;
        self.position.offset = self.destination.tail().to_owned();
        self.position.found = true;
        self.write_down(media)
    }

    fn check_surplus_ended(&self) -> Result<(), CopyFailure> {
        let json = self.media.as_ref().is_some_and(|media| media.json);
        self.surplus
            .as_ref()
            .map_or(Ok(()), |surplus| Err(surplus.more(unit(json))))
    }

    /// Checks that a stream that was complete is there.
    fn check_complete(&self) -> Result<(), CopyFailure> {
        let there = self.destination().head()?;
        let position = &self.position;
        match there {
            Some(facts) if facts.closed && facts.tail == position.offset => Ok(()),
            _ => Err(CopyFailure::Differs {
                why: format!(
                    "the stream was copied completely and closed at {}, and is not there any more",
                    position.offset
                ),
            }),
        }
    }
}

fn unit(json: bool) -> &'static str {
    if json { "messages" } else { "bytes" }
}

/// What is read of a body at a time.
const READ_BYTES: usize = 64 << 10;

const _: () = assert!(READ_BYTES <= BATCH_BYTES);
