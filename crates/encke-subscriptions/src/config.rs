//! The configuration of a subscription: what its client asks for when it creates it.

use aws_lc_rs::digest;
use encke_stream::Viewer;
use serde::{Deserialize, Serialize};

use crate::bounds::{DESCRIPTION_BYTES_MAX, LEASE_MS, LEASE_MS_LEAST, LEASE_MS_MAX};
use crate::error::SubscriptionError;
use crate::glob::Glob;
use crate::names::stream_name;

/// The configuration of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionConfig {
    /// How its workers learn of new records.
    pub kind: SubscriptionKind,
    /// The streams that it follows, by their names.
    pub pattern: Option<Glob>,
    /// More streams that it follows. They need not exist.
    pub streams: Vec<Box<str>>,
    /// Where events of pull-wake go.
    pub wake_stream: Option<Box<str>>,
    /// How long a worker has a wake unless it says that it still works.
    pub lease_ms: u64,
    /// A text of the client.
    pub description: Option<Box<str>>,
    /// Whose streams it may follow.
    pub viewer: Viewer,
}

/// How the workers of a subscription learn of new records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SubscriptionKind {
    /// The server calls a URL.
    Webhook {
        /// The URL.
        url: Box<str>,
    },
    /// The server appends events to a stream, and workers claim the wakes.
    PullWake,
}

/// What makes two configurations the same.
pub(crate) type ConfigDigest = [u8; 32];

impl SubscriptionConfig {
    /// A configuration of pull-wake with a stream for its events, which follows nothing yet.
    pub fn pull_wake(wake_stream: &str) -> SubscriptionConfig {
        SubscriptionConfig {
            kind: SubscriptionKind::PullWake,
            pattern: None,
            streams: Vec::new(),
            wake_stream: Some(wake_stream.into()),
            lease_ms: LEASE_MS,
            description: None,
            viewer: Viewer::All,
        }
    }

    /// A configuration that calls a URL, which follows nothing yet.
    pub fn webhook(url: &str) -> SubscriptionConfig {
        let url = url.into();
        SubscriptionConfig {
            kind: SubscriptionKind::Webhook { url },
            wake_stream: None,
            ..SubscriptionConfig::pull_wake("")
        }
    }

    /// The configuration in its only form: names without slashes at their ends, the list of streams sorted and without repetitions. The
    /// URL of a webhook is not checked here, because a subscription that exists is confirmed or refused before.
    ///
    /// # Errors
    /// A part is missing or out of its bounds.
    pub fn checked(mut self) -> Result<SubscriptionConfig, SubscriptionError> {
        if self.pattern.is_none() && self.streams.is_empty() {
            return Err(SubscriptionError::NothingToFollow);
        }
        for name in self.streams.iter_mut().chain(&mut self.wake_stream) {
            *name = stream_name(name)?;
        }
        self.streams.sort_unstable();
        self.streams.dedup();
        if self.kind == SubscriptionKind::PullWake && self.wake_stream.is_none() {
            return Err(SubscriptionError::NoWakeStream);
        }
        if let Some(own) = self.own_wake_stream()
            && self.streams.iter().any(|name| **name == *own)
        {
            return Err(SubscriptionError::OwnWakeStream(own.into()));
        }
        if !(LEASE_MS_LEAST..=LEASE_MS_MAX).contains(&self.lease_ms) {
            return Err(SubscriptionError::Lease(self.lease_ms));
        }
        if let Some(text) = &self.description
            && text.len() > DESCRIPTION_BYTES_MAX
        {
            return Err(SubscriptionError::Description(text.len()));
        }
        Ok(self)
    }

    /// The URL of its webhook.
    pub fn url(&self) -> Option<&str> {
        match &self.kind {
            SubscriptionKind::Webhook { url } => Some(url),
            SubscriptionKind::PullWake => None,
        }
    }

    /// The stream of its own events, which it does not follow.
    pub(crate) fn own_wake_stream(&self) -> Option<&str> {
        match self.kind {
            SubscriptionKind::PullWake => self.wake_stream.as_deref(),
            SubscriptionKind::Webhook { .. } => None,
        }
    }

    /// Whether its pattern includes a stream of that name and owner.
    pub(crate) fn matches(&self, name: &str, owner: Option<&str>) -> bool {
        self.pattern.as_ref().is_some_and(|glob| glob.matches(name))
            && self.own_wake_stream() != Some(name)
            && self.viewer.sees(owner)
    }

    /// At least as many bytes as its texts take in a record.
    pub(crate) fn weight_bytes(&self) -> usize {
        let texts = [
            self.url(),
            self.wake_stream.as_deref(),
            self.description.as_deref(),
        ];
        let owner = match &self.viewer {
            Viewer::Of(Some(owner)) => owner.len(),
            Viewer::All | Viewer::Of(None) => 0,
        };
        let pattern = self.pattern.as_ref().map_or(0, |glob| glob.as_str().len());
        let streams = self.streams.iter();
        texts.into_iter().flatten().map(str::len).sum::<usize>()
            + streams
                .map(|name| name.len() + NAME_HEAD_BYTES)
                .sum::<usize>()
            + owner
            + pattern
    }

    /// The same for two configurations in their only form if they are the same.
    pub(crate) fn digest(&self) -> ConfigDigest {
        let encoded = postcard::to_allocvec(self)
            .expect("growing a vector is the only thing that writes here");
        let digest = digest::digest(&digest::SHA256, &encoded);
        let mut bytes = ConfigDigest::default();
        bytes.copy_from_slice(digest.as_ref());
        bytes
    }
}

/// At least as many bytes as the length of a name takes.
const NAME_HEAD_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> SubscriptionConfig {
        SubscriptionConfig {
            pattern: Some("events/*".parse().unwrap()),
            ..SubscriptionConfig::pull_wake("wake")
        }
    }

    #[test]
    fn two_forms_of_a_configuration_are_one() {
        let one = SubscriptionConfig {
            streams: vec!["b".into(), "/a/".into(), "b/".into()],
            pattern: Some("/events/*".parse().unwrap()),
            ..SubscriptionConfig::pull_wake("/wake/")
        };
        let other = SubscriptionConfig {
            streams: vec!["a".into(), "b".into()],
            ..config()
        };
        let (one, other) = (one.checked().unwrap(), other.checked().unwrap());
        assert_eq!(one, other);
        assert_eq!(one.digest(), other.digest());
        for changed in [
            SubscriptionConfig {
                streams: vec!["a".into()],
                ..other.clone()
            },
            SubscriptionConfig {
                pattern: None,
                ..other.clone()
            },
            SubscriptionConfig {
                lease_ms: 30_001,
                ..other.clone()
            },
            SubscriptionConfig {
                description: Some("".into()),
                ..other.clone()
            },
            SubscriptionConfig {
                wake_stream: Some("w".into()),
                ..other.clone()
            },
            SubscriptionConfig {
                viewer: Viewer::Of(None),
                ..other.clone()
            },
            SubscriptionConfig {
                kind: SubscriptionKind::Webhook {
                    url: "https://a.example".into(),
                },
                ..other.clone()
            },
        ] {
            assert_ne!(changed.digest(), other.digest(), "{changed:?}");
        }
    }

    #[test]
    fn every_bound_is_named() {
        type Change = fn(&mut SubscriptionConfig);
        let cases: [(Change, SubscriptionError); 8] = [
            (
                |config| config.pattern = None,
                SubscriptionError::NothingToFollow,
            ),
            (
                |config| config.wake_stream = None,
                SubscriptionError::NoWakeStream,
            ),
            (
                |config| config.streams = vec!["/wake/".into()],
                SubscriptionError::OwnWakeStream("wake".into()),
            ),
            (
                |config| config.streams = vec!["a//b".into()],
                SubscriptionError::BadStreamName("a//b".into()),
            ),
            (
                |config| config.wake_stream = Some("__ds/x".into()),
                SubscriptionError::BadStreamName("__ds/x".into()),
            ),
            (
                |config| config.lease_ms = 999,
                SubscriptionError::Lease(999),
            ),
            (
                |config| config.lease_ms = 600_001,
                SubscriptionError::Lease(600_001),
            ),
            (
                |config| config.description = Some("x".repeat(1_025).into()),
                SubscriptionError::Description(1_025),
            ),
        ];
        for (change, error) in cases {
            let mut changed = config();
            change(&mut changed);
            assert_eq!(changed.checked(), Err(error));
        }
        for lease_ms in [LEASE_MS_LEAST, LEASE_MS_MAX] {
            let description = Some("x".repeat(DESCRIPTION_BYTES_MAX).into());
            let most = SubscriptionConfig {
                lease_ms,
                description,
                ..config()
            };
            assert!(most.checked().is_ok());
        }
    }

    #[test]
    fn a_pattern_includes_neither_its_own_events_nor_streams_of_others() {
        let config = SubscriptionConfig {
            pattern: Some("**".parse().unwrap()),
            viewer: Viewer::Of(Some("ann".into())),
            ..config()
        };
        assert!(config.matches("a", None) && config.matches("a", Some("ann")));
        assert!(!config.matches("a", Some("bob")));
        assert!(!config.matches("wake", None));
        // A webhook may have one, which means nothing.
        let kind = SubscriptionKind::Webhook {
            url: "https://a.example".into(),
        };
        assert!(SubscriptionConfig { kind, ..config }.matches("wake", None));
    }
}
