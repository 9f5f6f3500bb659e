//! Where backups are stored: a directory, or a bucket of S3 or of what is compatible with it.

mod bucket;
mod direct;
mod directory;
mod objects;

use self::bucket::Bucket;
use self::directory::Directory;
pub use self::objects::BucketAccess;
pub(crate) use self::objects::{Storage, StoredObject};
use crate::error::BackupError;

/// What a storage is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenFor {
    /// Nothing is made or changed.
    Read,
    /// It is made if it is missing.
    Write,
}

/// The storage in a directory, or at `s3://BUCKET/PREFIX`.
pub(crate) fn at(
    place: &str,
    wanted: OpenFor,
    access: &BucketAccess<'_>,
) -> Result<Box<dyn Storage>, BackupError> {
    match (place.strip_prefix("s3://"), wanted) {
        (Some(bucket), _) => Ok(Box::new(Bucket::at(bucket, access)?)),
        (None, _) if place.contains("://") => Err(BackupError::Place(format!(
            "{place} is no place for backups: a directory, or s3://BUCKET/PREFIX"
        ))),
        (None, OpenFor::Read) => Ok(Box::new(Directory::to_read(place.as_ref())?)),
        (None, OpenFor::Write) => Ok(Box::new(Directory::to_write(place.as_ref())?)),
    }
}
