//! How subscribers become members: by the rules of their streams, under the name of their caller.

use std::sync::Arc;

use encke_clock::SteadyTime;
use encke_presence::{NewMember, PresenceHold, PresencePlace, PresenceRefusal, PresenceRules};
use encke_stream::{MEMORY_LOG, Stream, StreamNo, log_of};

use super::streams::PresenceStreams;
use crate::action::Feed;
use crate::problem::error;
use crate::response::Response;

/// A subscriber's part in the members of its streams. It is there until this is dropped.
#[derive(Debug)]
pub struct PresenceSeat {
    /// Who it is. `None`: it is counted, and nobody.
    pub member: Option<NewMember>,
    holds: Vec<(StreamNo, PresenceHold)>,
}

impl PresenceSeat {
    /// The subscriber leaves the members of one of its streams.
    pub fn leave(&mut self, stream: StreamNo) {
        self.holds.retain(|(no, _)| *no != stream);
    }
}

impl PresenceStreams {
    /// Whether any stream has members but channels of protocols that bring their own.
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty()
    }

    /// The rules of a stream: those that name it most exactly. `None`: it has no members.
    pub(crate) fn rules_of(&self, name: &str) -> Option<PresenceRules> {
        if self
            .reserved
            .iter()
            .any(|prefix| name.starts_with(&**prefix))
        {
            return None;
        }
        let of = self.rules.iter();
        let of = of.map(|rule| (rule.names.match_length(name), rule.rules));
        let best = of.max_by_key(|(length, _)| *length)?;
        (best.0 > 0).then_some(best.1)
    }

    /// A subscriber of a feed becomes a member of the streams that the feed names and that have members. `None`: there are none.
    ///
    /// # Errors
    /// The response to a subscription for which there is no place.
    pub fn enter(
        self: &Arc<Self>,
        feed: &Feed,
        member: Option<NewMember>,
        now: SteadyTime,
    ) -> Result<Option<PresenceSeat>, Response> {
        if !self.has_rules() {
            return Ok(None);
        }
        let mut holds = Vec::new();
        let mut enter = |stream: &Stream| {
            let hold = self.enter_stream(&stream.name, member.as_ref(), now)?;
            holds.extend(hold.map(|hold| (stream.no, hold)));
            Ok(())
        };
        match feed {
            // Who follows the members of a stream is none of them.
            Feed::Single { stream, .. } if log_of(stream.no) == MEMORY_LOG => {}
            Feed::Single { stream, .. } => enter(stream)?,
            // Channels have members of their own.
            Feed::Awaited { .. } => {}
            Feed::Merged { sources, .. } => {
                let mut named = sources.iter().filter_map(|source| source.kind.stream());
                named.try_for_each(|stream| enter(stream))?;
            }
        }
        Ok((!holds.is_empty()).then_some(PresenceSeat { member, holds }))
    }

    /// The seat of another member in the streams of a seat.
    ///
    /// # Errors
    /// The response to a subscription for which there is no place.
    pub fn enter_as(
        self: &Arc<Self>,
        seat: &PresenceSeat,
        member: Option<NewMember>,
        now: SteadyTime,
    ) -> Result<PresenceSeat, Response> {
        let mut holds = Vec::with_capacity(seat.holds.len());
        for (no, hold) in &seat.holds {
            let hold = self.enter_stream(&hold.stream(), member.as_ref(), now)?;
            holds.extend(hold.map(|hold| (*no, hold)));
        }
        Ok(PresenceSeat { member, holds })
    }

    /// Enters a stream. `None`: it has no members.
    fn enter_stream(
        &self,
        name: &str,
        member: Option<&NewMember>,
        now: SteadyTime,
    ) -> Result<Option<PresenceHold>, Response> {
        let Some(rules) = self.rules_of(name) else {
            return Ok(None);
        };
        let place = PresencePlace {
            stream: name,
            rules,
        };
        let hold = match member {
            Some(member) => self.registry().enter(&place, member.clone(), now),
            None => self.registry().enter_anonymous(&place),
        };
        hold.map(Some).map_err(|why| refusal(name, &why))
    }
}

fn refusal(name: &str, why: &PresenceRefusal) -> Response {
    let message = format!("{name:?} takes no further member: {why}");
    match why {
        PresenceRefusal::TooLong { .. } => error(400, "presence_too_long", message),
        _ => error(429, "presence_full", message),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use encke_presence::Presence;

    use super::super::rules::PresenceRule;
    use super::*;
    use crate::protocols::PRESENCE_LIMITS;

    #[test]
    fn the_rule_that_names_a_stream_most_exactly_counts() {
        let rule = |names: &str, members_max| PresenceRule {
            names: names.into(),
            rules: PresenceRules {
                grace: Duration::ZERO,
                members_max,
                bytes_max: 1,
            },
        };
        let rules = vec![
            rule("chat/**", 1),
            rule("chat/a/**", 2),
            rule("chat/a/b", 3),
        ];
        let registry = Presence::new(PRESENCE_LIMITS);
        let streams = PresenceStreams::with_rules(registry, rules, vec!["chat/own/".into()]);
        let max = |name: &str| streams.rules_of(name).map(|rules| rules.members_max);
        assert_eq!(max("chat/x"), Some(1));
        assert_eq!(max("chat/a/x"), Some(2));
        assert_eq!(max("chat/a/b"), Some(3));
        assert_eq!(max("news"), None);
        assert_eq!(max("chat/own/x"), None, "a protocol brings its members");
        assert_eq!(max("chat/own"), Some(1));
        assert!(streams.has_rules());
    }
}
