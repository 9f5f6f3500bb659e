//! Where backups are stored: a directory, or a bucket of S3 or of what is compatible with it.

mod bucket;
mod direct;
mod directory;
mod objects;

use self::bucket::Bucket;
use self::directory::Directory;
pub use self::objects::BucketAccess;
pub(crate) use self::objects::Storage;
use crate::error::BackupError;

/// The storage in a directory, or at `s3://BUCKET/PREFIX`.
pub(crate) fn at(place: &str, access: &BucketAccess<'_>) -> Result<Box<dyn Storage>, BackupError> {
    match place.strip_prefix("s3://") {
        Some(bucket) => Ok(Box::new(Bucket::at(bucket, access)?)),
        None if place.contains("://") => Err(BackupError::Place(format!(
            "{place} is no place for backups: a directory, or s3://BUCKET/PREFIX"
        ))),
        None => Ok(Box::new(Directory::at(place.as_ref())?)),
    }
}
