//! The stored pieces, and what is known of each: whether it is there, with its size, and when it was last read.
//!
//! A piece is sound if the storage has it with its size, and as it was when it was last compared with its hash: the storage would give another
//! stamp to an object that was written since. All others are read. A sound piece is read from time to time as well, because content that rots on
//! a disk keeps its stamp.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::catalog::{Catalog, Verification};
use crate::error::BackupError;
use crate::manifest::{BackupName, Hash, Manifest, SavedFile};
use crate::repository::Repository;
use crate::storage::StoredObject;

/// The stored pieces of a repository, while a backup is made.
#[derive(Debug)]
pub struct StoredPieces<'r> {
    pub(crate) repository: &'r Repository,
    listed: BTreeMap<Hash, StoredObject>,
    pub(crate) catalog: Catalog,
    /// The state of each piece that was looked at, or stored since.
    found: BTreeMap<Hash, PieceState>,
    /// Pieces that were missing or damaged.
    unsound: BTreeSet<Hash>,
    /// The pieces that this backup has stored, with their sizes.
    added: BTreeMap<Hash, u64>,
    read_bytes: u64,
}

/// The state of a piece in the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceState {
    Sound,
    Missing,
    Damaged,
}

/// The choice of the backups that stay.
#[derive(Debug, Default)]
struct KeptBackups {
    /// All backups, in the order in which they were made, also the old ones.
    names: Vec<BackupName>,
    /// Those to remove.
    old: Vec<BackupName>,
    /// The pieces of the others.
    used: BTreeSet<Hash>,
    /// How many of the others do not count because they are damaged.
    damaged: usize,
    obstacle: Option<RemovalObstacle>,
}

/// Counts of a removal of old backups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Backups.
    pub backups: usize,
    /// Pieces that no other backup has.
    pub pieces: usize,
    /// Backups that are kept and do not count, because a piece of theirs is missing or damaged.
    pub damaged: usize,
    /// Why it was less than there is to remove.
    pub obstacle: Option<RemovalObstacle>,
}

/// Why old backups, or their pieces, stay until the next removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalObstacle {
    /// Backups are being listed, verified or restored: none was removed.
    Readers,
    /// The list of files of a backup that stays is damaged, or of another version: what pieces it has is not known, so none was removed.
    Damage,
}

impl<'r> StoredPieces<'r> {
    /// Lists the pieces, and reads the ones again whose turn has come. Each is read once within `verify_within`.
    ///
    /// # Errors
    /// The storage fails.
    pub fn examine(
        repository: &'r Repository,
        verify_within: Duration,
    ) -> Result<StoredPieces<'r>, BackupError> {
        let mut pieces = StoredPieces {
            repository,
            listed: repository.list_pieces()?,
            catalog: repository.catalog()?,
            found: BTreeMap::new(),
            unsound: BTreeSet::new(),
            added: BTreeMap::new(),
            read_bytes: 0,
        };
        let due = pieces
            .catalog
            .due(Timestamp::now(), verify_within.as_secs());
        for (hash, bytes) in due {
            // A piece that the list lacks is looked at if a backup uses it.
            if !pieces.listed.contains_key(&hash) {
                pieces.catalog.pieces.remove(&hash);
            } else if pieces.read(hash, bytes)? != PieceState::Sound {
                pieces.unsound.insert(hash);
            }
        }
        Ok(pieces)
    }

    /// The backups that are listed, in the order in which they were made.
    pub(crate) fn backups(&self) -> Result<Vec<BackupName>, BackupError> {
        let mut names = self.repository.names()?;
        self.catalog.sort(&mut names);
        Ok(names)
    }

    /// Bytes that were read to compare them with their hashes.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    /// How many pieces of earlier backups were missing or damaged, of those that were looked at.
    pub fn unsound(&self) -> usize {
        self.unsound.len()
    }

    /// Whether the storage has a piece of an earlier backup, and it is what it was.
    pub(crate) fn is_sound(&mut self, hash: Hash, bytes: u64) -> Result<bool, BackupError> {
        let is_sound = self.state(hash, bytes)? == PieceState::Sound;
        if !is_sound {
            self.unsound.insert(hash);
        }
        Ok(is_sound)
    }

    fn state(&mut self, hash: Hash, bytes: u64) -> Result<PieceState, BackupError> {
        if let Some(state) = self.found.get(&hash) {
            return Ok(*state);
        }
        let listed = self.listed.get(&hash).filter(|one| one.bytes == bytes);
        let stored = match listed {
            Some(listed) => Some(*listed),
            // The list may be late.
            None => self.repository.look_at_piece(hash)?,
        };
        let known = self.catalog.pieces.get(&hash);
        let state = match stored {
            None => PieceState::Missing,
            Some(stored) if stored.bytes != bytes => PieceState::Damaged,
            Some(stored) if known.is_some_and(|known| known.stamp == stored.stamp) => {
                PieceState::Sound
            }
            Some(stored) => {
                self.listed.insert(hash, stored);
                return self.read(hash, bytes);
            }
        };
        self.found.insert(hash, state);
        Ok(state)
    }

    /// Whether all pieces of a backup are sound.
    pub(crate) fn has_all_of(&mut self, manifest: &Manifest) -> Result<bool, BackupError> {
        let mut all = true;
        // All are looked at, so that all that are missing are counted.
        for (hash, bytes) in manifest.files().flat_map(SavedFile::pieces) {
            all &= self.is_sound(hash, bytes as u64)?;
        }
        Ok(all)
    }

    /// Stores a piece, unless it is there. Returns whether it was stored.
    pub(crate) fn add(&mut self, hash: Hash, content: &[u8]) -> Result<bool, BackupError> {
        let bytes = content.len() as u64;
        match self.state(hash, bytes)? {
            PieceState::Sound => return Ok(false),
            PieceState::Missing => {}
            PieceState::Damaged => drop(self.unsound.insert(hash)),
        }
        self.repository.put_piece(hash, content)?;
        self.added.insert(hash, bytes);
        self.found.insert(hash, PieceState::Sound);
        Ok(true)
    }

    /// Makes what was added durable, and notes that it is sound.
    pub(crate) fn settle(&mut self) -> Result<(), BackupError> {
        self.repository.settle()?;
        let at_s = Timestamp::now().as_second();
        for (hash, bytes) in &self.added {
            let stored = self.repository.look_at_piece(*hash)?;
            let stored = stored.filter(|stored| stored.bytes == *bytes);
            let stored = stored.ok_or_else(|| {
                BackupError::Damaged(format!("the storage has lost the new piece {hash}"))
            })?;
            let verification = Verification {
                bytes: *bytes,
                at_s,
                stamp: stored.stamp,
            };
            self.catalog.pieces.insert(*hash, verification);
        }
        Ok(())
    }

    /// Removes all backups of the server but the last `kept` ones that are whole, and the pieces that no other backup has. `newest` was just
    /// made: the list of a bucket may be late. Without `kept` none is removed. The catalog is stored for the next backup.
    ///
    /// # Errors
    /// The storage fails. What is left is whole.
    pub fn finish(
        &mut self,
        newest: BackupName,
        kept: Option<u32>,
    ) -> Result<Removed, BackupError> {
        let mut removed = Removed::default();
        let names = self.names(newest)?;
        self.catalog.set_backups(&names);
        let Some(kept) = kept else {
            self.save()?;
            return Ok(removed);
        };
        if !self.repository.keep_readers_out()? {
            removed.obstacle = Some(RemovalObstacle::Readers);
            self.save()?;
            return Ok(removed);
        }
        let kept = self.choose(names, newest, kept.max(1))?;
        removed.damaged = kept.damaged;
        removed.obstacle = kept.obstacle;
        self.catalog.set_backups(&kept.names);
        let listed = self.listed.keys().filter(|hash| !kept.used.contains(hash));
        let unused: BTreeSet<Hash> = match removed.obstacle {
            None => listed.copied().collect(),
            Some(_) => BTreeSet::new(),
        };
        // A catalog that names a piece must not outlive it. The names of removed backups stay until the next removal: a list may be late.
        self.catalog.pieces.retain(|hash, _| !unused.contains(hash));
        self.save()?;
        for name in kept.old {
            removed.backups += usize::from(self.repository.remove_manifest(name)?);
        }
        for hash in unused {
            self.repository.remove_piece(hash)?;
            removed.pieces += 1;
        }
        Ok(removed)
    }

    /// Chooses the backups that stay: the last `whole_max` ones that are whole of the server that has made `newest`, those between them, and those of
    /// other servers and versions.
    fn choose(
        &mut self,
        names: Vec<BackupName>,
        newest: BackupName,
        whole_max: u32,
    ) -> Result<KeptBackups, BackupError> {
        let log_ids = self.repository.manifest(newest)?.log_ids();
        let mut kept = KeptBackups::default();
        let mut whole = 0;
        for name in names.into_iter().rev() {
            let are_enough = whole >= whole_max;
            let manifest = match self.repository.manifest(name) {
                Ok(manifest) => manifest,
                // It was removed before: the list is late.
                Err(BackupError::NoBackup(_)) => continue,
                Err(BackupError::Damaged(_)) if are_enough => {
                    kept.names.push(name);
                    kept.old.push(name);
                    continue;
                }
                Err(BackupError::Damaged(_) | BackupError::OtherFormat { .. }) => {
                    kept.names.push(name);
                    kept.obstacle = Some(RemovalObstacle::Damage);
                    continue;
                }
                Err(error) => return Err(error),
            };
            kept.names.push(name);
            let is_of_server = manifest.is_of_server(&log_ids);
            if is_of_server && are_enough {
                kept.old.push(name);
                continue;
            }
            if is_of_server {
                match self.has_all_of(&manifest)? {
                    true => whole += 1,
                    false => kept.damaged += 1,
                }
            }
            let pieces = manifest.files().flat_map(|file| file.pieces.clone());
            kept.used.extend(pieces);
        }
        kept.names.reverse();
        Ok(kept)
    }

    fn save(&mut self) -> Result<(), BackupError> {
        let text = self.catalog.encode();
        let text = text.map_err(|error| BackupError::Version(error.to_string()))?;
        self.repository.put_catalog(&text)
    }

    /// All backups, also the ones that a late list lacks, in the order in which they were made.
    fn names(&self, newest: BackupName) -> Result<Vec<BackupName>, BackupError> {
        let mut names: BTreeSet<BackupName> = self.catalog.backups().collect();
        names.extend(self.repository.names()?);
        names.remove(&newest);
        let mut names: Vec<BackupName> = names.into_iter().collect();
        self.catalog.sort(&mut names);
        names.push(newest);
        Ok(names)
    }

    /// Reads a piece.
    fn read(&mut self, hash: Hash, bytes: u64) -> Result<PieceState, BackupError> {
        let state = match self.repository.piece(hash, bytes as usize) {
            Ok(_) => PieceState::Sound,
            Err(BackupError::Damaged(_)) => match self.repository.look_at_piece(hash)? {
                None => PieceState::Missing,
                Some(_) => PieceState::Damaged,
            },
            Err(error) => return Err(error),
        };
        match (state, self.listed.get(&hash)) {
            (PieceState::Sound, Some(listed)) => {
                let verification = Verification {
                    bytes,
                    at_s: Timestamp::now().as_second(),
                    stamp: listed.stamp,
                };
                self.catalog.pieces.insert(hash, verification);
            }
            _ => drop(self.catalog.pieces.remove(&hash)),
        }
        let before = self.read_bytes / SAVED_EVERY_BYTES;
        self.read_bytes += bytes;
        if self.read_bytes / SAVED_EVERY_BYTES != before {
            self.save()?;
        }
        self.found.insert(hash, state);
        Ok(state)
    }
}

/// After reading as much, what was found out is stored: a backup that is interrupted does not read it again.
const SAVED_EVERY_BYTES: u64 = 4 << 30;
