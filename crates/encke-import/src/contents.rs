//! The hash of what a stream has.

use std::io::{ErrorKind, Read};

use crate::backoff::Backoff;
use crate::content_hash::ContentHash;
use crate::copy_failure::CopyFailure;
use crate::messages::{MESSAGE_BYTES_MAX, MessagesError, each_message};
use crate::protocol_stream::ProtocolStream;

/// The hash of what a stream has behind an offset, up to so many messages, or bytes of a stream that is no JSON.
pub(crate) fn contents(
    stream: &ProtocolStream,
    from: &str,
    json: bool,
    units_max: u64,
) -> Result<ContentHash, CopyFailure> {
    let facts = stream.head()?.ok_or_else(|| CopyFailure::Protocol {
        url: stream.url.clone(),
        why: "there is no such stream".into(),
    })?;
    let mut backoff = Backoff::new(stream.patience);
    let mut reading = Reading {
        hash: ContentHash::new(),
        from: from.to_owned(),
        of_page: 0,
        units_max,
    };
    loop {
        let before = reading.hash.units();
        match reading.page(stream, json, &facts.tail) {
            Ok(true) => return Ok(reading.hash),
            Ok(false) => backoff.reset(),
            Err(error) => {
                if reading.hash.units() > before {
                    backoff.reset();
                }
                backoff.wait(error)?;
                stream.progress.retried();
            }
        }
    }
}

/// How far a stream has been read.
struct Reading {
    hash: ContentHash,
    /// Where the page begins that is read.
    from: String,
    /// What was read of it.
    of_page: u64,
    units_max: u64,
}

/// As much was read as was wanted.
struct Enough;

impl Reading {
    /// Reads a page, or what is left of it. Whether everything is read.
    fn page(
        &mut self,
        stream: &ProtocolStream,
        json: bool,
        tail: &str,
    ) -> Result<bool, CopyFailure> {
        if self.has_enough() {
            return Ok(true);
        }
        let mut page = stream.page(&self.from)?;
        let left = match page.body.take() {
            Some(body) if json => self.messages(stream, body)?,
            Some(body) => self.bytes(stream, body)?,
            None => self.of_page,
        };
        if self.has_enough() {
            return Ok(true);
        }
        stream.check_advance(&self.from, &page.next, self.of_page)?;
        let is_same = page.next == self.from;
        // The page may be shorter than one that was begun before.
        (self.from, self.of_page) = (page.next, left);
        let is_end = page.up_to_date && self.from.as_str() >= tail;
        if !is_end && (page.up_to_date || is_same) {
            return Err(CopyFailure::Behind {
                url: stream.url.clone(),
                tail: tail.to_owned(),
                reached: self.from.clone(),
            });
        }
        Ok(is_end)
    }

    fn has_enough(&self) -> bool {
        self.hash.units() >= self.units_max
    }

    /// Reads messages behind those that were read of the page before. How many of these were not there.
    fn messages(
        &mut self,
        stream: &ProtocolStream,
        body: Box<dyn Read + Send>,
    ) -> Result<u64, CopyFailure> {
        let mut skip = self.of_page;
        let result = each_message(body, MESSAGE_BYTES_MAX, &mut |message| {
            if skip > 0 {
                skip -= 1;
                return Ok(());
            }
            if self.has_enough() {
                return Err(Enough);
            }
            self.hash.message(message);
            self.of_page += 1;
            stream.progress.checked(message.len() as u64);
            Ok(())
        });
        let url = stream.url.clone();
        match result {
            Ok(()) | Err(MessagesError::Taker(Enough)) => Ok(skip),
            Err(MessagesError::CutOff(why)) => Err(CopyFailure::CutOff { url, why }),
            Err(MessagesError::NotJson(why)) => Err(CopyFailure::Protocol { url, why }),
            Err(MessagesError::TooLarge) => Err(CopyFailure::Protocol {
                url,
                why: "a message is too large".into(),
            }),
        }
    }

    /// The same of bytes.
    fn bytes(
        &mut self,
        stream: &ProtocolStream,
        mut body: Box<dyn Read + Send>,
    ) -> Result<u64, CopyFailure> {
        let mut skip = self.of_page;
        let mut buffer = vec![0; 64 << 10];
        while !self.has_enough() {
            let read = match body.read(&mut buffer) {
                Ok(0) => return Ok(skip),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(CopyFailure::CutOff {
                        url: stream.url.clone(),
                        why: error.to_string(),
                    });
                }
            };
            let skipped = skip.min(read as u64);
            skip -= skipped;
            let bytes = &buffer[skipped as usize..read];
            let wanted = self.units_max - self.hash.units();
            let taken = bytes
                .len()
                .min(usize::try_from(wanted).unwrap_or(usize::MAX));
            self.hash.bytes(&bytes[..taken]);
            self.of_page += taken as u64;
            stream.progress.checked(taken as u64);
        }
        Ok(skip)
    }
}
