//! The streams that subscriptions name. Who makes a subscription follow streams must be able to read them, and to append to the stream of
//! its events.

use encke_access::Operation;
use encke_stream::Viewer;
use encke_subscriptions::{Glob, SubscriptionConfig};

use crate::gate::{Admitted, Rights};
use crate::problem::error;
use crate::requirement::{Paths, Requirement};
use crate::response::Response;
use crate::streams::StreamAccess;

/// The streams that a request or a subscription names.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NamedStreams<'a> {
    pub(super) pattern: Option<&'a Glob>,
    pub(super) streams: &'a [Box<str>],
    pub(super) wake_stream: Option<&'a str>,
}

impl<'a> NamedStreams<'a> {
    pub(super) fn of(config: &'a SubscriptionConfig) -> Self {
        NamedStreams {
            pattern: config.pattern.as_ref(),
            streams: &config.streams,
            wake_stream: config.wake_stream.as_deref(),
        }
    }

    /// Refuses a request whose caller may not read these streams, or may not append to the one for events.
    pub(super) fn check(
        &self,
        streams: &StreamAccess,
        admitted: &Admitted<'_>,
    ) -> Result<(), Response> {
        for needed in self.requirements(streams) {
            let met = admitted.meet(&needed);
            // The stream need not exist: what is missing is the right.
            met.map_err(|refused| match refused.status {
                404 => {
                    let Requirement {
                        operation, paths, ..
                    } = &needed;
                    let why =
                        format!("the caller may not {operation} {paths}, which the request names");
                    error(403, "forbidden", why).audited(refused.audit)
                }
                _ => refused,
            })?;
        }
        match self.wake_stream {
            Some(name) => streams.rights.check_writer(Operation::Append, name),
            None => Ok(()),
        }
    }

    /// Whose streams a subscription may follow that a caller with these rights creates: those of all owners only if the caller may use
    /// those everywhere that it follows streams or writes events.
    pub(super) fn viewer(&self, root: &str, rights: &Rights) -> Viewer {
        let mut viewers = self
            .paths(root)
            .into_iter()
            .map(|paths| rights.viewer(&paths));
        viewers
            .find(|viewer| *viewer != Viewer::All)
            .unwrap_or(Viewer::All)
    }

    fn requirements(&self, access: &StreamAccess) -> Vec<Requirement<'static>> {
        let at = |operation, name: &str| {
            let path = format!("{}{name}", access.root);
            access.rights.of_stream(operation, name, path)
        };
        let mut needed = Vec::new();
        if let Some(pattern) = self.pattern {
            let matched = MatchedNames::of(pattern);
            if let Some(folder) = matched.folder {
                needed.extend(access.rights.of_all_below(&access.root, &folder));
            }
            needed.extend(matched.name.map(|name| at(Operation::Read, &name)));
        }
        needed.extend(self.streams.iter().map(|name| at(Operation::Read, name)));
        needed.extend(self.wake_stream.map(|name| at(Operation::Append, name)));
        needed
    }

    fn paths(&self, root: &str) -> Vec<Paths<'static>> {
        let at = |name: &str| stream_path(root, name);
        let mut paths = Vec::new();
        if let Some(pattern) = self.pattern {
            let matched = MatchedNames::of(pattern);
            let folder = matched.folder;
            paths.extend(folder.map(|folder| Paths::Below(format!("{root}{folder}").into())));
            paths.extend(matched.name.map(|name| at(&name)));
        }
        paths.extend(self.streams.iter().map(|name| at(name)));
        paths.extend(self.wake_stream.map(at));
        paths
    }
}

fn stream_path(root: &str, name: &str) -> Paths<'static> {
    Paths::One(format!("{root}{name}").into())
}

/// The names that a pattern can match: all in a folder, one, or both.
#[derive(Debug, PartialEq, Eq)]
struct MatchedNames {
    /// All names that begin with this, which is empty or ends with a slash.
    folder: Option<String>,
    name: Option<String>,
}

impl MatchedNames {
    fn of(pattern: &Glob) -> MatchedNames {
        let prefix = pattern.prefix();
        let mut segments = pattern.as_str().split('/');
        if !segments.any(|segment| matches!(segment, "*" | "**")) {
            return MatchedNames {
                folder: None,
                name: Some(prefix),
            };
        }
        match prefix.is_empty() || prefix.ends_with('/') {
            true => MatchedNames {
                folder: Some(prefix),
                name: None,
            },
            // `a/**` also matches `a`.
            false => MatchedNames {
                folder: Some(format!("{prefix}/")),
                name: Some(prefix),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_needs_no_less_than_it_matches() {
        for (pattern, folder, name) in [
            ("**", Some(""), None),
            ("*", Some(""), None),
            ("*/a", Some(""), None),
            ("**/a", Some(""), None),
            ("a/*", Some("a/"), None),
            ("a/*/b", Some("a/"), None),
            ("a/**/b", Some("a/"), None),
            ("a/b/**/**", Some("a/b/"), Some("a/b")),
            ("a/**", Some("a/"), Some("a")),
            ("a/b", None, Some("a/b")),
            ("a*", None, Some("a*")),
            ("%2A/b", None, Some("*/b")),
            ("%2a%2A/*", Some("**/"), None),
        ] {
            let matched = MatchedNames::of(&pattern.parse().unwrap());
            let expected = MatchedNames {
                folder: folder.map(str::to_owned),
                name: name.map(str::to_owned),
            };
            assert_eq!(matched, expected, "{pattern}");
        }
    }
}
