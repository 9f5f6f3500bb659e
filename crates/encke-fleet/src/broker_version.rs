//! Which versions of nats-server suit a fleet.

/// How a version of nats-server suits a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerVersion {
    /// It suits.
    Suits,
    /// A power cut can lose messages that it has acknowledged with `sync_interval: always`.
    Unsafe,
    /// It lacks functions that a fleet uses.
    TooOld,
    /// The text is no version.
    Unknown,
}

impl BrokerVersion {
    /// The versions that suit.
    pub const NEEDED: &str = "2.14.8 or later, without 2.15.0";

    /// The reason for the other versions.
    pub const WHY: &str = "`encke fleet repair` needs 2.10, and before 2.14.8, and in 2.15.0, a broker replaces files without a sync when it \
                           compacts them, so that a power cut can lose acknowledged messages in spite of `sync_interval: always`";

    /// Parses a version, such as `2.14.8` or `2.15.0-RC.1`.
    pub fn of(text: &str) -> BrokerVersion {
        let mut numbers = text
            .split(['.', '-'])
            .map_while(|part| part.parse::<u32>().ok());
        let (Some(major), Some(minor), Some(patch)) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return BrokerVersion::Unknown;
        };
        match (major, minor, patch) {
            version if version < (2, 10, 0) => BrokerVersion::TooOld,
            (2, 15, 0) => BrokerVersion::Unsafe,
            version if version < (2, 14, 8) => BrokerVersion::Unsafe,
            _ => BrokerVersion::Suits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_compact_without_a_sync_are_unsafe() {
        for (version, expected) in [
            ("2.9.25", BrokerVersion::TooOld),
            ("2.10.0", BrokerVersion::Unsafe),
            ("2.12.15", BrokerVersion::Unsafe),
            ("2.14.7", BrokerVersion::Unsafe),
            ("2.14.8", BrokerVersion::Suits),
            ("2.14.10-RC.1", BrokerVersion::Suits),
            ("2.15.0-preview.1", BrokerVersion::Unsafe),
            ("2.15.0", BrokerVersion::Unsafe),
            ("2.15.1", BrokerVersion::Suits),
            ("3.0.0", BrokerVersion::Suits),
            ("2.15", BrokerVersion::Unknown),
            ("main", BrokerVersion::Unknown),
        ] {
            assert_eq!(BrokerVersion::of(version), expected, "{version}");
        }
    }
}
