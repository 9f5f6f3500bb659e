//! What a place of backups can do, and what one in a bucket needs.

use std::fmt::Debug;

use encke_client::ClientRules;

use crate::error::BackupError;

/// An object, as its storage describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredObject {
    pub(crate) bytes: u64,
    /// Changes when the object is written again.
    pub(crate) stamp: u64,
}

/// Objects with keys, such as `backups/2026-11-26T16:15:48.123Z.json`.
pub(crate) trait Storage: Debug + Send {
    /// Stores an object, whole or not at all. [`Storage::settle`] makes it durable; until then it may not be listed, nor be read.
    fn put(&self, key: &str, content: &[u8]) -> Result<(), BackupError>;
    /// Makes all objects durable that were put.
    fn settle(&self) -> Result<(), BackupError>;
    /// An object; `None` if there is none of that key. One that is longer than `bytes_max` is not read to its end, and the result is longer, too.
    fn get(&self, key: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, BackupError>;
    /// Describes an object; `None` if there is none of that key.
    fn look(&self, key: &str) -> Result<Option<StoredObject>, BackupError>;
    /// Calls `each` with the objects whose keys begin with `prefix`, which ends in `/`, in no order. A bucket's list may be late: it may lack
    /// what was put, and have what was removed.
    fn list(
        &self,
        prefix: &str,
        each: &mut dyn FnMut(&str, StoredObject),
    ) -> Result<(), BackupError>;
    /// Whether what was put must be read again to know that it is stored.
    fn is_remote(&self) -> bool;
    /// Has readers wait from now on, where the storage can. False: some read now, and nothing may be removed.
    fn keep_readers_out(&self) -> Result<bool, BackupError> {
        Ok(true)
    }
    /// Removes an object, which may be gone already.
    fn remove(&self, key: &str) -> Result<(), BackupError>;
}

/// What access to a bucket needs.
pub struct BucketAccess<'a> {
    /// Variables of the environment, as tools for S3 have them: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION` and
    /// `AWS_ENDPOINT_URL`.
    pub setting: &'a dyn Fn(&str) -> Option<String>,
    /// The rules of requests.
    pub client: ClientRules,
}
