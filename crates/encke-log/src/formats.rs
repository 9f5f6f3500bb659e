//! The formats of what is on the disk, for a process that is to take it over from another version.

use crate::segments::segment;
use crate::superblock::statement;

/// What a version does with one kind of data on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFormat {
    /// The kind of data.
    pub kind: &'static str,
    /// The first format that it reads.
    pub reads_from: u32,
    /// The format that it writes, which is the last one that it reads.
    pub writes: u32,
}

/// The formats of a log's own files.
pub fn data_formats() -> [DataFormat; 2] {
    let only = |kind, format: u16| DataFormat {
        kind,
        reads_from: u32::from(format),
        writes: u32::from(format),
    };
    [
        only("superblock", statement::VERSION),
        only("segments", segment::VERSION),
    ]
}
