//! Copies a log from another node.

use std::path::Path;
use std::time::Duration;

use async_nats::Client;
use encke_log::{CopyError, LogCopy};
use futures_util::{StreamExt, stream};
use tokio::runtime::Runtime;
use xxhash_rust::xxh3::Xxh3;

use super::protocol::{self, Answer, Begun, Manifest, PIECE_BYTES_MAX, REQUESTS_AT_ONCE, Request};
use crate::connect;
use crate::error::FleetError;
use crate::inquiry;
use crate::node_report::{NodeReport, Question};
use crate::report;
use crate::settings::{BrokerAccess, FleetName};

/// A log could not be copied. The log that was there is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum CopyLogError {
    /// No node can give a copy.
    #[error("no node gives a copy of log {log}: {}", reasons.join("; "))]
    NoSource {
        /// The index of the log.
        log: usize,
        /// What each node has answered.
        reasons: Vec<String>,
    },
    /// The copy cannot be written here.
    #[error(transparent)]
    Place(#[from] CopyError),
    /// The brokers cannot be asked.
    #[error(transparent)]
    Fleet(#[from] FleetError),
}

/// How far a copy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// The index of the log.
    pub log: usize,
    /// The node that gives the copy.
    pub from: String,
    /// The files of the copy.
    pub files: usize,
    /// Those that have arrived.
    pub files_done: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// What has arrived.
    pub bytes_done: u64,
}

/// A connection for copying logs.
pub struct LogCopier {
    runtime: Runtime,
    client: Client,
    fleet: FleetName,
    /// Who copies: a node that copies a log again takes the place of its earlier copy.
    copier: String,
}

/// Why a copy from one node has failed.
enum Failed {
    /// It gives other copies. It may give this one later.
    Busy,
    /// Another node may work.
    Source(String),
    /// No other node would help.
    Place(CopyError),
}

impl From<CopyError> for Failed {
    fn from(error: CopyError) -> Self {
        Failed::Place(error)
    }
}

impl LogCopier {
    /// Connects to a broker. Waits for one, at most for `timeout`.
    ///
    /// # Errors
    /// No broker answers.
    pub fn connect(
        access: &BrokerAccess,
        fleet: &FleetName,
        copier: &str,
        timeout: Duration,
    ) -> Result<LogCopier, FleetError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fleet-copy")
            .enable_all()
            .build()?;
        let name = format!("encke {copier} copies");
        let client = runtime.block_on(connect::connect(access, &name, timeout))?;
        Ok(LogCopier {
            runtime,
            client,
            fleet: fleet.clone(),
            copier: copier.to_owned(),
        })
    }

    /// The number of logs of the fleet.
    ///
    /// # Errors
    /// The brokers have no such fleet, or do not answer.
    pub fn logs(&self, access: &BrokerAccess) -> Result<usize, FleetError> {
        let logs = self.runtime.block_on(async {
            let context = async_nats::jetstream::new(self.client.clone());
            let mut logs = 0;
            while report::order(&context, &self.fleet, logs).await?.is_some() {
                logs += 1;
            }
            Ok::<_, FleetError>(logs)
        })?;
        match logs {
            0 => Err(FleetError::NoFleet {
                name: self.fleet.to_string(),
                brokers: access.brokers.to_string(),
            }),
            logs => Ok(logs),
        }
    }

    /// Copies a log into a directory, in the place of the log that may be there. Takes it from the node `from`, or from the
    /// one that has applied the most. Waits for 5 min while all of them give other copies. `progress` is called after
    /// every piece.
    ///
    /// # Errors
    /// See [`CopyLogError`].
    pub fn copy(
        &self,
        log: usize,
        from: Option<&FleetName>,
        directory: &Path,
        progress: &mut dyn FnMut(&CopyProgress),
    ) -> Result<(), CopyLogError> {
        self.runtime
            .block_on(self.copy_from_any(log, from, directory, progress))
    }

    async fn copy_from_any(
        &self,
        log: usize,
        from: Option<&FleetName>,
        directory: &Path,
        progress: &mut dyn FnMut(&CopyProgress),
    ) -> Result<(), CopyLogError> {
        let until = tokio::time::Instant::now() + BUSY_WAIT;
        let mut asked_again = 0;
        loop {
            let nodes = inquiry::ask(&self.client, &self.fleet, &Question::default()).await?;
            let (nodes, mut reasons) = self.sources(nodes, log, from);
            // They may have no processor for the moment.
            if nodes.is_empty() && asked_again < inquiry::ASKED_AGAIN {
                asked_again += 1;
                continue;
            }
            let mut busy = false;
            for node in nodes {
                match self.copy_from(&node, log, directory, progress).await {
                    Ok(()) => return Ok(()),
                    Err(Failed::Place(error)) => return Err(error.into()),
                    Err(Failed::Busy) => {
                        busy = true;
                        reasons.push(format!("node {node} gives as many copies as it may"));
                    }
                    Err(Failed::Source(reason)) => {
                        tracing::warn!(log, from = node, reason, "a copy has failed");
                        reasons.push(format!("node {node}: {reason}"));
                    }
                }
            }
            if !busy || tokio::time::Instant::now() >= until {
                return Err(CopyLogError::NoSource { log, reasons });
            }
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// The nodes that may give a copy, the one that has applied the most first, and why others may not.
    fn sources(
        &self,
        mut nodes: Vec<NodeReport>,
        log: usize,
        from: Option<&FleetName>,
    ) -> (Vec<String>, Vec<String>) {
        let mut reasons = Vec::new();
        nodes.retain(|node| {
            let asked = from.is_none_or(|from| from.as_str() == node.node);
            asked && node.node != self.copier
        });
        nodes.retain(|node| match &node.unready {
            Some(reason) => {
                reasons.push(format!("node {} is not ready: {reason}", node.node));
                false
            }
            None => true,
        });
        if nodes.is_empty() && reasons.is_empty() {
            reasons.push(match from {
                Some(from) => format!("node {from} does not answer"),
                None => "no other node answers".into(),
            });
        }
        nodes.sort_by_key(|node| std::cmp::Reverse(node.logs.get(log).map(|log| log.applied)));
        (nodes.into_iter().map(|node| node.node).collect(), reasons)
    }

    async fn copy_from(
        &self,
        node: &str,
        log: usize,
        directory: &Path,
        progress: &mut dyn FnMut(&CopyProgress),
    ) -> Result<(), Failed> {
        let place = LogCopy::begin(directory)?;
        let source = Peer {
            client: &self.client,
            subject: protocol::subject(&self.fleet, node),
        };
        let begin = Request::Begin {
            log,
            copier: self.copier.clone(),
        };
        let begun = source.request(&begin, BEGIN_WITHIN).await?;
        let begun: Begun = parse(&begun)?;
        let copied = source.copy(&begun, &place, (log, node), progress).await;
        // Also after a failure: the source need not wait for the end of its timeout. Without an answer it does.
        let end = Request::End { copy: begun.copy };
        let _ = source.request_once(&end, PIECE_WITHIN).await;
        copied?;
        place.complete()?;
        Ok(())
    }
}

/// The node that gives a copy.
struct Peer<'a> {
    client: &'a Client,
    subject: String,
}

impl Peer<'_> {
    async fn copy(
        &self,
        begun: &Begun,
        place: &LogCopy,
        (log, node): (usize, &str),
        progress: &mut dyn FnMut(&CopyProgress),
    ) -> Result<(), Failed> {
        if begun.manifest_bytes > MANIFEST_BYTES_MAX {
            return Err(Failed::Source(format!(
                "its list of files has {} bytes, {MANIFEST_BYTES_MAX} are allowed",
                begun.manifest_bytes
            )));
        }
        let mut manifest = Vec::new();
        let append = &mut |piece: &[u8]| {
            manifest.extend_from_slice(piece);
            Ok(())
        };
        self.read(begun.copy, None, begun.manifest_bytes, append)
            .await?;
        let manifest: Manifest = parse(&manifest)?;
        for directory in &manifest.directories {
            place.make_directory(directory)?;
        }
        let mut at = CopyProgress {
            log,
            from: node.to_owned(),
            files: manifest.files.len(),
            files_done: 0,
            bytes: manifest.files.iter().map(|(_, bytes)| bytes).sum(),
            bytes_done: 0,
        };
        progress(&at);
        for (index, (name, bytes)) in (0..).zip(&manifest.files) {
            let before = at.bytes_done;
            let mut tries = 0;
            while !self
                .copy_file((begun.copy, index), (name, *bytes), place, &mut |piece| {
                    at.bytes_done += piece;
                    progress(&at);
                })
                .await?
            {
                tries += 1;
                if tries >= FILE_TRIES_MAX {
                    return Err(Failed::Source(format!(
                        "{name} has arrived damaged {tries} times"
                    )));
                }
                tracing::warn!(file = name, "a file has arrived damaged; copying it again");
                at.bytes_done = before;
            }
            at.files_done += 1;
            progress(&at);
        }
        Ok(())
    }

    /// Copies a file. False: it is not the one that the source has.
    async fn copy_file(
        &self,
        (copy, file): (u64, u32),
        (name, bytes): (&str, u64),
        place: &LogCopy,
        arrived: &mut dyn FnMut(u64),
    ) -> Result<bool, Failed> {
        let mut copied = place.make_file(name)?;
        let mut hasher = Xxh3::new();
        let append = &mut |piece: &[u8]| {
            copied.append(piece)?;
            hasher.update(piece);
            arrived(piece.len() as u64);
            Ok(())
        };
        self.read(copy, Some(file), bytes, append).await?;
        let hash = Request::Hash { copy, file };
        let hash = self.request(&hash, HASH_WITHIN).await?;
        if hash != hasher.digest128().to_le_bytes() {
            return Ok(false);
        }
        copied.finish()?;
        Ok(true)
    }

    /// Reads a file piece by piece, a few of them on their way at a time.
    async fn read(
        &self,
        copy: u64,
        file: Option<u32>,
        bytes: u64,
        append: &mut dyn FnMut(&[u8]) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let payload_max = self.client.max_payload();
        let piece_max = PIECE_BYTES_MAX.min(payload_max.saturating_sub(protocol::HEAD_BYTES));
        let piece_max = piece_max.max(1) as u64;
        let offsets = (0..bytes.div_ceil(piece_max)).map(|piece| piece * piece_max);
        let mut pieces = stream::iter(offsets)
            .map(|offset| async move {
                let bytes = (bytes - offset).min(piece_max);
                let request = Request::Read {
                    copy,
                    file,
                    offset,
                    bytes: bytes as u32,
                };
                let piece = self.request(&request, PIECE_WITHIN).await?;
                match piece.len() as u64 == bytes {
                    true => Ok(piece),
                    false => Err(Failed::Source("a piece has another length".into())),
                }
            })
            .buffered(REQUESTS_AT_ONCE);
        while let Some(piece) = pieces.next().await {
            append(&piece?)?;
        }
        Ok(())
    }

    /// Asks until an answer arrives whole, a few times.
    async fn request(&self, request: &Request, within: Duration) -> Result<Vec<u8>, Failed> {
        let mut tries = 0;
        loop {
            let error = match self.request_once(request, within).await {
                Ok(Answer::Body(body)) => return Ok(body),
                Ok(Answer::Busy) => return Err(Failed::Busy),
                Ok(Answer::Refused(reason)) => return Err(Failed::Source(reason)),
                Err(error) => error,
            };
            tries += 1;
            if tries >= TRIES_MAX {
                return Err(Failed::Source(error));
            }
            tracing::debug!(error, "a piece of a copy is asked for again");
            tokio::time::sleep(TRY_PAUSE).await;
        }
    }

    async fn request_once(&self, request: &Request, within: Duration) -> Result<Answer, String> {
        let payload = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        let asked = async_nats::Request::new()
            .payload(payload.clone().into())
            .timeout(Some(within));
        let answer = self.client.send_request(self.subject.clone(), asked).await;
        let answer = answer.map_err(|error| error.to_string())?;
        Answer::decode(&payload, &answer.payload).map_err(|error| error.to_string())
    }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, Failed> {
    serde_json::from_slice(bytes)
        .map_err(|error| Failed::Source(format!("its answer cannot be read: {error}")))
}

/// How long a copy waits for a node that gives as many copies as it may.
const BUSY_WAIT: Duration = Duration::from_secs(300);

const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// The largest list of files, in bytes: about a million files.
const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// A node takes a snapshot within this time.
const BEGIN_WITHIN: Duration = Duration::from_secs(60);

/// A piece arrives within this time, or is asked for again.
const PIECE_WITHIN: Duration = Duration::from_secs(5);

/// A file is hashed within this time.
pub(super) const HASH_WITHIN: Duration = Duration::from_secs(60);

/// How often a piece is asked for that does not arrive, or arrives damaged.
const TRIES_MAX: u32 = 5;

/// How often a file is copied whose hash differs.
const FILE_TRIES_MAX: u32 = 3;

const TRY_PAUSE: Duration = Duration::from_millis(200);
