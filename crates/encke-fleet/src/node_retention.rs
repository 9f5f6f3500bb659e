//! How long a node keeps records.

use std::fmt;
use std::time::Duration;

use encke_log::LogRetention;
use serde::{Deserialize, Serialize};

/// How long a node keeps records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRetention {
    /// [`LogRetention::age_max`], in milliseconds.
    pub age_max_ms: Option<u64>,
    /// [`LogRetention::bytes_max`].
    pub bytes_max: Option<u64>,
}

impl From<LogRetention> for NodeRetention {
    fn from(retention: LogRetention) -> Self {
        NodeRetention {
            age_max_ms: retention.age_max.map(|age| age.as_millis() as u64),
            bytes_max: retention.bytes_max,
        }
    }
}

/// As settings.
impl fmt::Display for NodeRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = self.age_max_ms.map(Duration::from_millis);
        match (age, self.bytes_max) {
            (None, None) => f.write_str("no retention"),
            (Some(age), None) => write!(f, "--retention-age {age:?}"),
            (None, Some(bytes)) => write!(f, "--retention-size {bytes}"),
            (Some(age), Some(bytes)) => {
                write!(f, "--retention-age {age:?} --retention-size {bytes}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_shown_as_settings() {
        let both = LogRetention {
            age_max: Some(Duration::from_secs(60)),
            bytes_max: Some(1_000),
        };
        let text = NodeRetention::from(both).to_string();
        assert_eq!(text, "--retention-age 60s --retention-size 1000");
        assert_eq!(NodeRetention::default().to_string(), "no retention");
    }
}
