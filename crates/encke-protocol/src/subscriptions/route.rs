//! What the paths of subscriptions are, and which methods they have.

use encke_subscriptions::{RESERVED_SEGMENT, ReportKind};

use crate::problem::{check_method, error};
use crate::response::Response;

/// What a path below the reserved segment is. Ids and names are as in the path, which is decoded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubscriptionRoute<'a> {
    /// The keys that sign calls.
    Keys,
    /// A subscription.
    Subscription { id: &'a str },
    /// The streams that it follows by their names.
    Links { id: &'a str },
    /// One of these.
    Link { id: &'a str, stream: &'a str },
    /// Where workers claim its wake.
    Claim { id: &'a str },
    /// Where receivers and workers report on its wake.
    Report { id: &'a str, kind: ReportKind },
}

impl<'a> SubscriptionRoute<'a> {
    /// What a canonical path is. `root` is the path above the streams.
    ///
    /// # Errors
    /// There is nothing at it.
    pub(super) fn of(root: &str, path: &'a str) -> Result<Self, Response> {
        let below = path
            .strip_prefix(root)
            .and_then(|below| below.strip_prefix(RESERVED_SEGMENT))
            .and_then(|below| below.strip_prefix('/'));
        below
            .and_then(SubscriptionRoute::parse)
            .ok_or_else(nothing_here)
    }

    /// What the part of a path behind the reserved segment is. `None`: there is nothing at it.
    pub(super) fn parse(below: &'a str) -> Option<Self> {
        if below == "jwks.json" {
            return Some(SubscriptionRoute::Keys);
        }
        let of_id = below.strip_prefix("subscriptions/")?;
        let (id, action) = match of_id.split_once('/') {
            None => return Some(SubscriptionRoute::Subscription { id: of_id }),
            Some(parts) => parts,
        };
        let report = |kind| SubscriptionRoute::Report { id, kind };
        Some(match action {
            "streams" => SubscriptionRoute::Links { id },
            "claim" => SubscriptionRoute::Claim { id },
            "callback" => report(ReportKind::Callback),
            "ack" => report(ReportKind::Ack),
            "release" => report(ReportKind::Release),
            action => {
                let stream = action.strip_prefix("streams/")?;
                SubscriptionRoute::Link { id, stream }
            }
        })
    }

    /// Refuses a method that the path does not have.
    pub(super) fn check_method(self, method: &str) -> Result<(), Response> {
        check_method(
            method,
            match self {
                SubscriptionRoute::Keys => &["GET", "HEAD"],
                SubscriptionRoute::Subscription { .. } => &["GET", "HEAD", "PUT", "DELETE"],
                SubscriptionRoute::Link { .. } => &["DELETE"],
                SubscriptionRoute::Links { .. }
                | SubscriptionRoute::Claim { .. }
                | SubscriptionRoute::Report { .. } => &["POST"],
            },
        )
    }

    /// The id of the subscription.
    pub(super) fn id(self) -> Option<&'a str> {
        match self {
            SubscriptionRoute::Keys => None,
            SubscriptionRoute::Subscription { id }
            | SubscriptionRoute::Links { id }
            | SubscriptionRoute::Link { id, .. }
            | SubscriptionRoute::Claim { id }
            | SubscriptionRoute::Report { id, .. } => Some(id),
        }
    }
}

/// The path of a subscription, where rights to it are granted.
pub(super) fn own_path(root: &str, id: &str) -> String {
    format!("{root}{RESERVED_SEGMENT}/subscriptions/{id}")
}

fn nothing_here() -> Response {
    let why = format!(
        "there is nothing here: below {RESERVED_SEGMENT} there are jwks.json and subscriptions/ID, and below a subscription, whose id has no \
         slash, /streams, /streams/NAME, /claim, /ack, /release and /callback"
    );
    error(404, "SUBSCRIPTION_NOT_FOUND", why)
}

/// The methods of all paths together.
pub(super) const METHODS: &[&str] = &["GET", "HEAD", "PUT", "POST", "DELETE"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_thing() {
        let id = "x";
        let stream = "a/b/claim";
        let report = |kind| SubscriptionRoute::Report { id, kind };
        for (below, route) in [
            ("jwks.json", SubscriptionRoute::Keys),
            ("subscriptions/x", SubscriptionRoute::Subscription { id }),
            ("subscriptions/x/streams", SubscriptionRoute::Links { id }),
            (
                "subscriptions/x/streams/a/b/claim",
                SubscriptionRoute::Link { id, stream },
            ),
            ("subscriptions/x/claim", SubscriptionRoute::Claim { id }),
            ("subscriptions/x/callback", report(ReportKind::Callback)),
            ("subscriptions/x/ack", report(ReportKind::Ack)),
            ("subscriptions/x/release", report(ReportKind::Release)),
            (
                "subscriptions/claim",
                SubscriptionRoute::Subscription { id: "claim" },
            ),
        ] {
            assert_eq!(SubscriptionRoute::parse(below), Some(route));
            let path = format!("/v1/stream/__ds/{below}");
            assert_eq!(
                SubscriptionRoute::of("/v1/stream/", &path).ok(),
                Some(route)
            );
        }
        for below in [
            "",
            "x",
            "jwks.json/x",
            "subscriptions",
            "subscriptions/x/y",
            "subscriptions/x/claim/y",
            "subscriptions/x/streamsa",
            "subscriptions/x/Claim",
        ] {
            assert_eq!(SubscriptionRoute::parse(below), None, "{below}");
        }
        for path in ["/v1/stream/__ds", "/v1/stream/__dsx/jwks.json", "/v1/x"] {
            assert!(
                SubscriptionRoute::of("/v1/stream/", path).is_err(),
                "{path}"
            );
        }
    }
}
