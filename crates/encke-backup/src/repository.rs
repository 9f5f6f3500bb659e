//! Backups in a storage: pieces under `pieces/`, each with its hash as name, and manifests under `backups/`.

use std::collections::BTreeSet;

use crate::error::BackupError;
use crate::manifest::{BackupName, Hash, Manifest, SavedFile};
use crate::storage::{self, BucketAccess, Storage};

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
    /// The backups in a directory, which is made, or at `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// It is no such place, settings are missing, or another backup or restore uses the directory.
    pub fn at(place: &str, access: &BucketAccess<'_>) -> Result<Repository, BackupError> {
        Ok(Repository {
            storage: storage::at(place, access)?,
        })
    }

    /// All backups, oldest first.
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
        names.sort();
        Ok(names)
    }

    /// The last backup that was begun at `time` or before.
    ///
    /// # Errors
    /// There is none, or the storage cannot be listed.
    pub fn backup_at(&self, time: jiff::Timestamp) -> Result<BackupName, BackupError> {
        let names = self.backups()?;
        let last = names.iter().rev().find(|name| name.time() <= time);
        last.copied().ok_or_else(|| {
            BackupError::NoBackup(match names.first() {
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

    /// Removes all backups but the last `kept` ones, and the pieces that those do not have.
    ///
    /// # Errors
    /// The storage fails. What is left is whole.
    pub fn remove_old(&self, kept: usize) -> Result<Removed, BackupError> {
        let mut names = self.backups()?;
        let left = names.split_off(names.len().saturating_sub(kept.max(1)));
        let mut used = BTreeSet::new();
        for name in &left {
            used.extend(
                self.manifest(*name)?
                    .files()
                    .flat_map(|file| file.pieces.clone()),
            );
        }
        for name in &names {
            self.storage.remove(&manifest_key(*name))?;
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
        Ok(Removed {
            backups: names.len(),
            pieces: unused.len(),
        })
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
