//! Backups in a storage: pieces under `pieces/`, each with its hash as name, and manifests under `backups/`.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::error::BackupError;
use crate::manifest::{BackupName, Hash, Manifest, SavedFile};
use crate::storage::{self, BucketAccess, OpenFor, Storage};

/// The backups in a directory or a bucket.
#[derive(Debug)]
pub struct Repository {
    storage: Box<dyn Storage>,
}

/// What was removed with old backups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Backups.
    pub backups: usize,
    /// Pieces that no other backup has.
    pub pieces: usize,
    /// Why it was less than there is to remove.
    pub obstacle: Option<RemovalObstacle>,
}

/// Why old backups, or their pieces, stay until the next removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalObstacle {
    /// Backups are being listed, verified or restored: none was removed.
    Readers,
    /// A backup that stays is damaged, or of another version: what pieces it has is not known, so none was removed.
    Damage,
}

/// What a verification has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Pieces, each once.
    pub pieces: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Repository {
    /// The backups in a directory, or at `s3://BUCKET/PREFIX`, to list, verify and restore them. Nothing is made or changed.
    ///
    /// # Errors
    /// It is no such place, or settings are missing.
    pub fn to_read(place: &str, access: &BucketAccess<'_>) -> Result<Repository, BackupError> {
        Ok(Repository {
            storage: storage::at(place, OpenFor::Read, access)?,
        })
    }

    /// The same to add backups, and to remove some. A directory is made if it is missing.
    ///
    /// # Errors
    /// It is no such place, settings are missing, or another backup writes to the directory.
    pub fn to_write(place: &str, access: &BucketAccess<'_>) -> Result<Repository, BackupError> {
        Ok(Repository {
            storage: storage::at(place, OpenFor::Write, access)?,
        })
    }

    /// All backups, oldest first. Those that are ahead of the clock count as older than the others.
    ///
    /// # Errors
    /// The storage cannot be listed.
    pub fn backups(&self) -> Result<Vec<BackupName>, BackupError> {
        let mut names = Vec::new();
        self.storage.list(BACKUPS, &mut |key| {
            let name = key
                .strip_prefix(BACKUPS)
                .and_then(|key| key.strip_suffix(".json"));
            names.extend(name.and_then(|name| name.parse::<BackupName>().ok()));
        })?;
        BackupName::sort(&mut names, Timestamp::now());
        Ok(names)
    }

    /// The last backup, or the last one that was begun at `time` or before.
    ///
    /// # Errors
    /// There is none, or the storage cannot be listed.
    pub fn backup_at(&self, time: Option<Timestamp>) -> Result<BackupName, BackupError> {
        let names = self.backups()?;
        let last = match time {
            None => names.last(),
            Some(time) => names.iter().filter(|name| name.time() <= time).max(),
        };
        last.copied().ok_or_else(|| {
            BackupError::NoBackup(match names.iter().min() {
                None => "there are no backups".to_owned(),
                Some(first) => format!("the first backup is of {first}"),
            })
        })
    }

    /// What a backup consists of.
    ///
    /// # Errors
    /// There is no such backup, or it is damaged.
    pub fn manifest(&self, name: BackupName) -> Result<Manifest, BackupError> {
        let text = self.storage.get(&manifest_key(name))?;
        let text =
            text.ok_or_else(|| BackupError::NoBackup(format!("there is no backup {name}")))?;
        Manifest::decode(&text)
    }

    /// Reads each piece of a backup, and compares it with its hash.
    ///
    /// # Errors
    /// A piece is missing or damaged.
    pub fn verify(&self, manifest: &Manifest) -> Result<Verified, BackupError> {
        let mut verified = Verified::default();
        let mut known = BTreeSet::new();
        for (hash, bytes) in manifest.files().flat_map(SavedFile::pieces) {
            if known.insert(hash) {
                verified.bytes += self.piece(hash, bytes)?.len() as u64;
                verified.pieces += 1;
            }
        }
        Ok(verified)
    }

    /// The last of these backups whose list of files can be read, and how many are behind it.
    pub(crate) fn last_whole(
        &self,
        names: &[BackupName],
    ) -> Result<(Option<Manifest>, usize), BackupError> {
        for (damaged, name) in names.iter().rev().enumerate() {
            if let Some(manifest) = self.whole_manifest(*name)? {
                return Ok((Some(manifest), damaged));
            }
        }
        Ok((None, names.len()))
    }

    /// What a backup consists of; `None` if its list of files can't be read by this version.
    fn whole_manifest(&self, name: BackupName) -> Result<Option<Manifest>, BackupError> {
        match self.manifest(name) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(BackupError::Damaged(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes all backups but the last `kept` ones, and the pieces that those do not have. Of those that are kept, damaged ones do not count.
    ///
    /// # Errors
    /// The storage fails. What is left is whole.
    pub fn remove_old(&self, kept: usize) -> Result<Removed, BackupError> {
        let mut removed = Removed::default();
        if !self.storage.keep_readers_out()? {
            removed.obstacle = Some(RemovalObstacle::Readers);
            return Ok(removed);
        }
        let names = self.backups()?;
        let (mut used, mut whole) = (BTreeSet::new(), 0);
        for name in names.iter().rev() {
            if whole >= kept.max(1) {
                self.storage.remove(&manifest_key(*name))?;
                removed.backups += 1;
                continue;
            }
            let Some(manifest) = self.whole_manifest(*name)? else {
                removed.obstacle = Some(RemovalObstacle::Damage);
                continue;
            };
            whole += 1;
            used.extend(manifest.files().flat_map(|file| file.pieces.clone()));
        }
        if removed.obstacle.is_some() {
            return Ok(removed);
        }
        let mut unused = Vec::new();
        self.storage.list(PIECES, &mut |key| {
            let name = key.rsplit('/').next().unwrap_or_default();
            if name.parse::<Hash>().is_ok_and(|hash| !used.contains(&hash)) {
                unused.push(key.to_owned());
            }
        })?;
        for key in &unused {
            self.storage.remove(key)?;
        }
        removed.pieces = unused.len();
        Ok(removed)
    }

    /// Stores a piece, unless it is there. Returns whether it was stored. The manifest makes it durable.
    pub(crate) fn add_piece(&self, hash: Hash, content: &[u8]) -> Result<bool, BackupError> {
        let key = piece_key(hash);
        if self.storage.has(&key)? {
            return Ok(false);
        }
        self.storage.put(&key, content)?;
        Ok(true)
    }

    /// A piece, if it is what it was.
    pub(crate) fn piece(&self, hash: Hash, bytes: usize) -> Result<Vec<u8>, BackupError> {
        let key = piece_key(hash);
        let damaged = |what: &str| BackupError::Damaged(format!("the piece {key} {what}"));
        let content = self.storage.get(&key)?;
        let content = content.ok_or_else(|| damaged("is missing"))?;
        match content.len() == bytes && Hash::of(&content) == hash {
            true => Ok(content),
            false => Err(damaged("has other content")),
        }
    }

    pub(crate) fn add_manifest(
        &self,
        name: BackupName,
        manifest: &Manifest,
    ) -> Result<(), BackupError> {
        let text = serde_json::to_vec(manifest).map_err(|error| {
            BackupError::Version(format!("the list of files is no JSON: {error}"))
        })?;
        // A manifest that is there has all its pieces.
        self.storage.settle()?;
        self.storage.put(&manifest_key(name), &text)?;
        self.storage.settle()
    }
}

fn manifest_key(name: BackupName) -> String {
    format!("{BACKUPS}{name}.json")
}

/// In one of 256 folders.
fn piece_key(hash: Hash) -> String {
    format!("{PIECES}{:02x}/{hash}", hash.0[0])
}

const BACKUPS: &str = "backups/";
const PIECES: &str = "pieces/";
