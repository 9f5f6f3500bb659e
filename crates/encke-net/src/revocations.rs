//! Revoked credentials in the log: a stream that no client can name.

use encke_access::{Access, Revocation};
use encke_protocol::REVOCATIONS;
use encke_stream::{
    AckLevel, Command, Create, Data, Fetch, Lookup, Offset, Sequencers, Submission, Submitter,
};

use crate::archive::Archive;
use crate::clock::now_ms;
use crate::errors::StartError;

/// Reads all revocations from the log, and tells the access control.
///
/// # Errors
/// The stream can't be read, or holds something else.
pub(crate) fn restore(archive: &Archive, access: &Access) -> Result<(), StartError> {
    let unreadable = |why: String| StartError::Revocations(why);
    let known = archive.loaders.load(REVOCATIONS);
    let stream = match known.map_err(|error| unreadable(error.to_string()))? {
        Lookup::Stream(stream) => stream,
        Lookup::Free(_) => return Ok(()),
    };
    let tail = stream.facts().tail;
    let mut from = Offset::START;
    loop {
        let fetch = Fetch::new(&stream, from, tail, PIECE_BYTES);
        let piece = archive.read(&fetch);
        let piece = piece.map_err(|error| unreadable(error.to_string()))?;
        for item in piece.items() {
            let revocation: Revocation = serde_json::from_slice(item.data)
                .map_err(|error| unreadable(format!("record {}: {error}", item.end.sequence)))?;
            access
                .restore(revocation, now_ms())
                .map_err(|error| unreadable(error.to_string()))?;
        }
        if !piece.more {
            return Ok(());
        }
        from = piece.end;
    }
}

/// Creates the stream, unless it is there. Appends that follow find it, because they are decided later.
pub(crate) fn create(sequencers: &Sequencers) {
    let command = Command::Create(Create {
        name: REVOCATIONS.into(),
        content_type: Some("application/json".into()),
        lifetime: None,
        closed: false,
        fork: None,
        data: Data::default(),
        ack: Some(AckLevel::Synced),
        retention: None,
        known: Vec::new(),
    });
    let bytes = command.weight_bytes();
    // No connection has this token, so that the reply is for nobody.
    let from = Submitter {
        shard: 0,
        token: u64::MAX,
    };
    let mut commands = vec![(Submission { command, from }, bytes)];
    // The mailbox is empty: nothing has been sent before.
    sequencers.submit(&mut commands, now_ms());
}

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 1 << 20;
