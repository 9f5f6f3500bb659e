//! Backups in a storage: pieces under `pieces/`, each with its hash as name, manifests under `backups/`, and the catalog of the pieces.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use encke_clock::WallTime;

use crate::catalog::Catalog;
use crate::error::BackupError;
use crate::manifest::{BackupName, Hash, Manifest, SavedFile};
use crate::storage::{self, BucketAccess, OpenFor, Storage, StoredObject};

/// The backups in a directory or a bucket.
#[derive(Debug)]
pub struct Repository {
    storage: Box<dyn Storage>,
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

    /// All backups, in the order in which they were made.
    ///
    /// # Errors
    /// The storage cannot be listed.
    pub fn backups(&self) -> Result<Vec<BackupName>, BackupError> {
        let mut names = self.names()?;
        self.catalog()?.sort(&mut names);
        Ok(names)
    }

    /// The names of all backups.
    pub(crate) fn names(&self) -> Result<Vec<BackupName>, BackupError> {
        let mut names = Vec::new();
        self.storage.list(BACKUPS, &mut |key, _| {
            let name = key
                .strip_prefix(BACKUPS)
                .and_then(|key| key.strip_suffix(".json"));
            names.extend(name.and_then(|name| name.parse::<BackupName>().ok()));
        })?;
        Ok(names)
    }

    /// The last backup, or the last one that was begun at `time` or before.
    ///
    /// # Errors
    /// There is none, or the storage cannot be listed.
    pub fn backup_at(&self, time: Option<WallTime>) -> Result<BackupName, BackupError> {
        let names = self.backups()?;
        let last = match time {
            None => names.last(),
            Some(time) => names.iter().filter(|name| name.is_by(time)).max(),
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
        let text = self.storage.get(&manifest_key(name), LIST_BYTES_MAX)?;
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
        let mut damaged = 0;
        for name in names.iter().rev() {
            match self.manifest(*name) {
                Ok(manifest) => return Ok((Some(manifest), damaged)),
                Err(BackupError::Damaged(_) | BackupError::OtherFormat { .. }) => damaged += 1,
                // It was removed before: the list is late.
                Err(BackupError::NoBackup(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((None, damaged))
    }

    /// Keeps readers out from now on, without waiting. False: some read now.
    pub(crate) fn keep_readers_out(&self) -> Result<bool, BackupError> {
        self.storage.keep_readers_out()
    }

    /// Removes a backup. Returns whether it was there. Its pieces stay.
    pub(crate) fn remove_manifest(&self, name: BackupName) -> Result<bool, BackupError> {
        let key = manifest_key(name);
        let is_there = self.storage.look(&key)?.is_some();
        self.storage.remove(&key)?;
        Ok(is_there)
    }

    /// All pieces, as the storage lists them.
    pub(crate) fn list_pieces(&self) -> Result<BTreeMap<Hash, StoredObject>, BackupError> {
        let mut listed = BTreeMap::new();
        self.storage.list(PIECES, &mut |key, stored| {
            let name = key.rsplit('/').next().unwrap_or_default();
            if let Ok(hash) = name.parse::<Hash>() {
                listed.insert(hash, stored);
            }
        })?;
        Ok(listed)
    }

    pub(crate) fn look_at_piece(&self, hash: Hash) -> Result<Option<StoredObject>, BackupError> {
        self.storage.look(&piece_key(hash))
    }

    /// Stores a piece. [`Repository::settle`] makes it durable.
    pub(crate) fn put_piece(&self, hash: Hash, content: &[u8]) -> Result<(), BackupError> {
        self.put_surely(&piece_key(hash), content)
    }

    pub(crate) fn remove_piece(&self, hash: Hash) -> Result<(), BackupError> {
        self.storage.remove(&piece_key(hash))
    }

    pub(crate) fn settle(&self) -> Result<(), BackupError> {
        self.storage.settle()
    }

    /// The catalog of the pieces that earlier backups have stored.
    pub(crate) fn catalog(&self) -> Result<Catalog, BackupError> {
        let text = self.storage.get(CATALOG, LIST_BYTES_MAX)?;
        Ok(text.map_or_else(Catalog::default, |text| Catalog::decode(&text)))
    }

    pub(crate) fn put_catalog(&self, text: &[u8]) -> Result<(), BackupError> {
        self.storage.put(CATALOG, text)?;
        self.storage.settle()
    }

    /// Stores an object, and reads it again where another machine stores it.
    fn put_surely(&self, key: &str, content: &[u8]) -> Result<(), BackupError> {
        let mut waits = READ_AGAIN.iter();
        loop {
            self.storage.put(key, content)?;
            let stored = |is: Vec<u8>| is == content;
            let bytes = content.len() as u64;
            if !self.storage.is_remote() || self.storage.get(key, bytes)?.is_some_and(stored) {
                return Ok(());
            }
            match waits.next() {
                Some(wait) => std::thread::sleep(*wait),
                None => {
                    return Err(BackupError::Damaged(format!(
                        "the bucket has taken {key}, and does not give it back"
                    )));
                }
            }
        }
    }

    /// A piece, if it is what it was.
    pub(crate) fn piece(&self, hash: Hash, bytes: usize) -> Result<Vec<u8>, BackupError> {
        let key = piece_key(hash);
        let damaged = |what: &str| BackupError::Damaged(format!("the piece {key} {what}"));
        let content = self.storage.get(&key, bytes as u64)?;
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
        self.put_surely(&manifest_key(name), &text)?;
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
const CATALOG: &str = "catalog.json";
/// The longest list: the catalog of 36 TB of pieces.
const LIST_BYTES_MAX: u64 = 1 << 30;
/// Before an object that the bucket does not give back is stored again.
const READ_AGAIN: [Duration; 3] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(5),
];
