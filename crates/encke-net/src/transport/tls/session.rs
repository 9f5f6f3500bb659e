//! A session after its handshake: reads and writes records.
//!
//! rustls makes the handshake and hands over secrets and what is needed for changes of keys (its `kernel` interface). The provider of
//! rustls protects the records. Nothing here computes keys, nonces or codes. What this layer has to keep by itself:
//!
//! - **Whole and in order.** A record that the socket takes in part is kept, and nothing else is encrypted before the rest is out. So a
//!   sequence number that is used is that of a record that goes out, and the numbers on the wire have no gaps.
//! - **Sequence numbers.** Each direction counts by itself. It begins at the number that rustls hands over, because the handshake has used
//!   the key before (for tickets), grows by one with each record, and begins at 0 with each new key. No number is used twice with one
//!   key for a record that leaves this process: a number grows as soon as its record is encrypted, and a cipher that is
//!   built again goes on with the next one (`keys`). Where encrypting or decrypting fails, the session ends.
//! - **Limits of keys.** One key encrypts at most `confidentiality_limit` records, as rustls states it for the suite; the last one is left for
//!   what ends its use. With TLS 1.3 that is a KeyUpdate, and the next key follows. TLS 1.2 has none: the session ends
//!   with `close_notify` ([`TlsFault::Exhausted`]). There is no limit for decrypting, because the first record that fails ends the session.
//! - **KeyUpdate** (RFC 8446, section 4.6.3). It is the only message behind a handshake that is accepted from a client, alone and whole in its
//!   record, so the key never changes inside one. The new key decrypts the next record. If the client asks for a change in return, the
//!   answer goes out directly before the next content, in one piece with it; several requests before that get one answer.
//!   This side never asks. At most [`KEY_UPDATES_MAX`] may come between two records with content.
//! - **Padding.** None is added. The decrypter of TLS 1.3 removes that of clients. A record of padding only is one without content,
//!   of which at most [`EMPTY_RECORDS_MAX`] may come in a row, together with alerts that say nothing.
//! - **Sizes.** A header that announces more than [`PAYLOAD_BYTES_MAX`] is refused before its payload is kept; the decrypter checks the bound of
//!   its version on what it returns.
//! - **Ends.** Only `close_notify` ends a side properly; a socket that ends without it is [`ReadOutcome::Truncated`]. What follows it is
//!   ignored. Behind an alert nothing is sent.
//! - **Zeroing.** Keys are overwritten when they are replaced or dropped, and a session never moves, so that it leaves no copies (`keys`).
//!   Content is not overwritten: it is in the buffers of the shard, too.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustls::crypto::cipher::InboundOpaqueMessage;
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{
    AlertDescription, ContentType, Error, HandshakeType, ProtocolVersion, SupportedCipherSuite,
};

use super::fault::TlsFault;
use super::keys::{CIPHER_WORDS, HANDSHAKE_WORDS, Opener, Sealer, wipe_stack};
use super::record::{CONTENT_BYTES_MAX, HEADER_BYTES, PAYLOAD_BYTES_MAX, frame};
use crate::buffers::{BufferShare, Buffers};
use crate::transport::plain;

/// A session of a server.
pub(crate) struct TlsSession {
    /// What derives the next keys. `None`: the session has moved in from another process.
    kernel: Option<KernelConnection<ServerConnectionData>>,
    pub(super) suite: SupportedCipherSuite,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// What is under way; `None` while the session is between two records in both directions.
    pub(super) held: Option<Box<Held>>,
    /// Records that one key may encrypt.
    records_max: u64,
    /// Changes of keys that the peer may still ask for before it sends data.
    key_updates_left: u8,
    /// Records without content that the peer may still send before it sends data.
    empty_records_left: u8,
    /// The peer asked for a change of the key that encrypts.
    pub(super) owes_key_update: bool,
    /// The peer has said that it sends nothing more.
    pub(super) ended: bool,
}

/// Parts of records.
#[derive(Default)]
pub(super) struct Held {
    /// The beginning of a record.
    pub(super) input: Vec<u8>,
    /// A record that the socket has taken in part, and how much of it.
    pub(super) output: Vec<u8>,
    pub(super) sent: usize,
    /// The last byte of content in `output` was not reported as taken.
    pub(super) owes_byte: bool,
    pub(super) memory: BufferShare,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// What arrived was read, perhaps without a byte of content. `drained`: the socket held no more.
    Read { drained: bool },
    /// The socket holds nothing.
    Nothing,
    /// The peer has ended its side properly. Content before the end was read.
    Ended,
    /// The socket has ended without an end of the session: the peer is gone, or somebody has cut the connection.
    Truncated,
}

impl TlsSession {
    /// Takes over from a handshake that is complete; `input` are bytes behind it. The session stays where it is from then on: wherever it
    /// was moved from, its keys would be left.
    pub(super) fn new(
        connection: UnbufferedServerConnection,
        input: Vec<u8>,
    ) -> Result<Box<Self>, Error> {
        let session = Self::boxed(connection, input);
        wipe_stack::<HANDSHAKE_WORDS>();
        session
    }

    fn boxed(connection: UnbufferedServerConnection, input: Vec<u8>) -> Result<Box<Self>, Error> {
        let (secrets, kernel) = connection.dangerous_into_kernel_connection()?;
        let unknown = || Error::General("an unknown cipher".to_owned());
        let suite = kernel.negotiated_cipher_suite();
        let mut session = Box::new(TlsSession::of_parts(
            Some(kernel),
            suite,
            Sealer::new(secrets.tx).ok_or_else(unknown)?,
            Opener::new(secrets.rx).ok_or_else(unknown)?,
        ));
        session.keep_input(&input);
        Ok(session)
    }

    pub(super) fn of_parts(
        kernel: Option<KernelConnection<ServerConnectionData>>,
        suite: SupportedCipherSuite,
        sealer: Sealer,
        opener: Opener,
    ) -> Self {
        let common = match suite {
            SupportedCipherSuite::Tls12(suite) => &suite.common,
            SupportedCipherSuite::Tls13(suite) => &suite.common,
        };
        TlsSession {
            records_max: common.confidentiality_limit,
            sealer,
            opener,
            kernel,
            suite,
            held: None,
            key_updates_left: KEY_UPDATES_MAX,
            empty_records_left: EMPTY_RECORDS_MAX,
            owes_key_update: false,
            ended: false,
        }
    }

    /// Receives into `scratch`, which has room for at least one record more than it must, and appends content to `out`.
    pub(crate) fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        scratch: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<ReadOutcome, TlsFault> {
        let kept = self.take_input(scratch);
        let Some(room) = scratch.get_mut(kept..).filter(|room| !room.is_empty()) else {
            return Err(TlsFault::Unexpected("a record larger than the buffer"));
        };
        let wanted = room.len();
        let received = match plain::receive(fd, room) {
            Ok(0) => {
                return Ok(match self.ended {
                    true => ReadOutcome::Ended,
                    false => ReadOutcome::Truncated,
                });
            }
            Ok(received) => received,
            Err(Errno::AGAIN) => {
                self.keep_input(&scratch[..kept]);
                return Ok(ReadOutcome::Nothing);
            }
            Err(error) => return Err(error.into()),
        };
        let there = kept + received;
        let taken = self.open(&mut scratch[..there], out)?;
        self.keep_input(&scratch[taken..there]);
        Ok(match self.ended {
            true => ReadOutcome::Ended,
            false => ReadOutcome::Read {
                drained: received < wanted,
            },
        })
    }

    /// Encrypts and sends. Returns how many bytes were taken; less than all, if the socket is full.
    ///
    /// A record that the socket took in part is kept and counts as taken, except for the last byte of `bytes`: that one counts
    /// only when the rest of its record is out. So less than all is taken for as long as something is kept, and the next
    /// call begins with what was not taken of this one.
    pub(crate) fn write(&mut self, fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, TlsFault> {
        let Some(mut taken) = self.flush(fd)? else {
            return Ok(0);
        };
        taken = taken.min(bytes.len());
        while taken < bytes.len() {
            let end = bytes.len().min(taken + CONTENT_BYTES_MAX);
            let record = self.seal(&bytes[taken..end])?;
            taken = end;
            let sent = plain::send(fd, &record)?;
            if sent < record.len() {
                let owes_byte = taken == bytes.len();
                let held = self.held.get_or_insert_default();
                held.output = record;
                held.sent = sent;
                held.owes_byte = owes_byte;
                taken -= usize::from(owes_byte);
                break;
            }
        }
        Ok(taken)
    }

    /// Whether a record is out in part only.
    pub(crate) fn has_unsent(&self) -> bool {
        self.held
            .as_ref()
            .is_some_and(|held| !held.output.is_empty())
    }

    /// Bytes of the beginning of a record.
    pub(crate) fn partial_input(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.input.len())
    }

    /// Tells the peer why the session ends, as far as the socket takes it.
    pub(crate) fn end_with(&mut self, fd: BorrowedFd<'_>, fault: &TlsFault) {
        if let Some(alert) = fault.alert() {
            self.send_alert(fd, alert);
        }
    }

    /// Ends this side of the session properly, unless a record is out in part only.
    pub(crate) fn close(&mut self, fd: BorrowedFd<'_>) {
        self.send_alert(fd, AlertDescription::CloseNotify);
    }

    /// Counts what the session holds in the memory of all connections, and returns it.
    pub(crate) fn weigh(&mut self, buffers: &Arc<Buffers>) -> usize {
        let Some(held) = &mut self.held else {
            return 0;
        };
        let bytes = held.input.capacity() + held.output.capacity() + size_of::<Held>();
        held.memory.set(bytes, buffers);
        bytes
    }

    /// Gives back the memory of ciphers, which are built again with the next record.
    pub(crate) fn rest(&mut self) {
        self.sealer.rest();
        self.opener.rest();
    }

    #[cfg(test)]
    pub(super) fn set_records_max(&mut self, records_max: u64) {
        self.records_max = records_max;
    }

    /// Decrypts the complete records at the beginning of `bytes`. Returns how many bytes these are.
    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> Result<usize, TlsFault> {
        let suite = self.suite;
        let mut taken = 0;
        while !self.ended
            && let Some(found) = frame(&bytes[taken..])?
        {
            let payload = taken + HEADER_BYTES;
            taken = payload + found.payload;
            // Everything is encrypted now. TLS 1.3 hides the kind of a record.
            let tls13 = matches!(suite, SupportedCipherSuite::Tls13(_));
            if tls13 && found.kind != ContentType::ApplicationData {
                return Err(TlsFault::Unexpected("a record without encryption"));
            }
            let record =
                InboundOpaqueMessage::new(found.kind, found.version, &mut bytes[payload..taken]);
            let message = self.opener.open(suite, record);
            let message = message.map_err(TlsFault::Undecryptable)?;
            let content = message.payload;
            match message.typ {
                ContentType::ApplicationData if content.is_empty() => {
                    self.empty_records_left = self
                        .empty_records_left
                        .checked_sub(1)
                        .ok_or(TlsFault::Futile("empty records"))?;
                }
                ContentType::ApplicationData => {
                    out.extend_from_slice(content);
                    self.empty_records_left = EMPTY_RECORDS_MAX;
                    self.key_updates_left = KEY_UPDATES_MAX;
                }
                ContentType::Alert => self.alerted(content)?,
                ContentType::Handshake if tls13 => self.update_keys(content)?,
                ContentType::Handshake => return Err(TlsFault::Renegotiation),
                _ => return Err(TlsFault::Unexpected("a record of this type")),
            }
        }
        // What follows the end is ignored.
        Ok(if self.ended { bytes.len() } else { taken })
    }

    fn alerted(&mut self, content: &[u8]) -> Result<(), TlsFault> {
        let &[_level, description] = content else {
            return Err(TlsFault::Unexpected("an alert of another length"));
        };
        match AlertDescription::from(description) {
            AlertDescription::CloseNotify => {
                self.ended = true;
                Ok(())
            }
            // It comes before the end, and says nothing.
            AlertDescription::UserCanceled => {
                self.empty_records_left = self
                    .empty_records_left
                    .checked_sub(1)
                    .ok_or(TlsFault::Futile("alerts"))?;
                Ok(())
            }
            other => Err(TlsFault::Alert(other)),
        }
    }

    /// Changes the key that decrypts. Only this message may come behind a handshake, alone and whole in a record.
    fn update_keys(&mut self, content: &[u8]) -> Result<(), TlsFault> {
        let asks = match content {
            [kind, 0, 0, 1, asks @ (0 | 1)] if *kind == u8::from(HandshakeType::KeyUpdate) => {
                *asks == 1
            }
            _ => return Err(TlsFault::Unexpected("a message of a handshake")),
        };
        self.key_updates_left = self
            .key_updates_left
            .checked_sub(1)
            .ok_or(TlsFault::Futile("changes of keys"))?;
        let kernel = self.kernel.as_mut();
        let kernel = kernel.ok_or(TlsFault::Unexpected("a change of keys behind an upgrade"))?;
        let secrets = kernel.update_rx_secret().map_err(TlsFault::Provider)?;
        self.opener = Opener::new(secrets).ok_or(TlsFault::Unexpected("an unknown cipher"))?;
        wipe_stack::<CIPHER_WORDS>();
        self.owes_key_update |= asks;
        Ok(())
    }

    /// Encrypts content of at most 2^14 bytes, behind a change of the key if one is due.
    fn seal(&mut self, content: &[u8]) -> Result<Vec<u8>, TlsFault> {
        let suite = self.suite;
        let used_up = self.sealer.sequence() + 1 >= self.records_max;
        let mut record = Vec::new();
        if used_up || self.owes_key_update {
            let kernel = self.kernel.as_mut();
            let kernel = kernel.filter(|one| one.protocol_version() == ProtocolVersion::TLSv1_3);
            let kernel = kernel.ok_or(TlsFault::Exhausted)?;
            let update = [u8::from(HandshakeType::KeyUpdate), 0, 0, 1, 0];
            record = self
                .sealer
                .seal(suite, ContentType::Handshake, &update)
                .map_err(TlsFault::Provider)?;
            let secrets = kernel.update_tx_secret().map_err(TlsFault::Provider)?;
            self.sealer = Sealer::new(secrets).ok_or(TlsFault::Unexpected("an unknown cipher"))?;
            wipe_stack::<CIPHER_WORDS>();
            self.owes_key_update = false;
        }
        let sealed = self
            .sealer
            .seal(suite, ContentType::ApplicationData, content)
            .map_err(TlsFault::Provider)?;
        if record.is_empty() {
            return Ok(sealed);
        }
        record.extend_from_slice(&sealed);
        Ok(record)
    }

    /// Sends what is kept. Returns how many bytes of content count as taken with it; `None`: the socket is full.
    fn flush(&mut self, fd: BorrowedFd<'_>) -> Result<Option<usize>, TlsFault> {
        let Some(held) = &mut self.held else {
            return Ok(Some(0));
        };
        if held.output.is_empty() {
            return Ok(Some(0));
        }
        held.sent += plain::send(fd, &held.output[held.sent..])?;
        if held.sent < held.output.len() {
            return Ok(None);
        }
        let taken = usize::from(held.owes_byte);
        (held.output, held.sent, held.owes_byte) = (Vec::new(), 0, false);
        self.let_go();
        Ok(Some(taken))
    }

    fn send_alert(&mut self, fd: BorrowedFd<'_>, alert: AlertDescription) {
        if !matches!(self.flush(fd), Ok(Some(_))) {
            return;
        }
        let suite = self.suite;
        let level = match alert {
            AlertDescription::CloseNotify => ALERT_WARNING,
            _ => ALERT_FATAL,
        };
        let content = [level, u8::from(alert)];
        if let Ok(record) = self.sealer.seal(suite, ContentType::Alert, &content) {
            // The session is over in any case.
            let _ = plain::send(fd, &record);
        }
    }

    /// Moves the beginning of a record into a buffer. Returns its length.
    fn take_input(&mut self, scratch: &mut [u8]) -> usize {
        let Some(held) = &mut self.held else {
            return 0;
        };
        let kept = held.input.len().min(scratch.len());
        scratch[..kept].copy_from_slice(&held.input[..kept]);
        held.input.clear();
        kept
    }

    fn keep_input(&mut self, input: &[u8]) {
        if !input.is_empty() {
            let held = self.held.get_or_insert_default();
            held.input.clear();
            held.input.extend_from_slice(input);
        }
        self.let_go();
    }

    /// Frees what holds nothing any more.
    fn let_go(&mut self) {
        let idle = |held: &Held| held.input.is_empty() && held.output.is_empty();
        if self.held.as_deref().is_some_and(idle) {
            self.held = None;
        }
    }
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Secrets are not for logs.
        f.debug_struct("TlsSession")
            .field("suite", &self.suite.suite())
            .field("partial_input", &self.partial_input())
            .field("has_unsent", &self.has_unsent())
            .finish_non_exhaustive()
    }
}

/// The bytes of an idle session, apart from its key schedule: a size class of the allocator, of which the next has 896. rustls's object
/// for changes of keys has 560 of them, 496 of which are fields for QUIC.
const SESSION_BYTES_MAX: usize = 768;
const _: () = assert!(size_of::<TlsSession>() <= SESSION_BYTES_MAX);

/// Changes of keys between two records with content.
const KEY_UPDATES_MAX: u8 = 32;

/// Records without content, and alerts that say nothing, between two with content.
const EMPTY_RECORDS_MAX: u8 = 32;

const ALERT_WARNING: u8 = 1;
const ALERT_FATAL: u8 = 2;

/// A read has room for the rest of a record and for another one.
const _: () = assert!(PAYLOAD_BYTES_MAX + HEADER_BYTES < 32 << 10);
