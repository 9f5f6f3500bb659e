//! What happens to the channels of an app, as its webhooks are told: what the log says is compared with who is subscribed.

use std::collections::HashMap;
use std::time::Duration;

use encke_clock::SteadyTime;
use encke_presence::{PresenceChange, PresenceEvent};
use serde_json::value::RawValue;

use super::channel_state::{ChannelPart, ChannelState, ChannelSubject, difference};
use super::event::WebhookEvent;
use super::kind::WebhookKind;
use super::repetition::Repetition;
use crate::json;
use crate::pusher::channel_name::ChannelName;
use crate::pusher::settings::PusherWebhook;

/// The channels of an app, as they are and as the log says.
#[derive(Debug)]
pub(crate) struct ChannelReports {
    /// They say what is wanted.
    webhooks: Vec<PusherWebhook>,
    actual: HashMap<Box<str>, ChannelState>,
    /// While this node reports.
    reporting: Option<Reporting>,
}

/// What a node knows while it reports.
#[derive(Debug, Default)]
struct Reporting {
    is_restored: bool,
    told: HashMap<Box<str>, ChannelState>,
    /// What is to be compared, and when.
    due: HashMap<ChannelSubject, SteadyTime>,
    repetition: Repetition,
}

impl ChannelReports {
    pub(crate) fn new(webhooks: Vec<PusherWebhook>) -> Self {
        ChannelReports {
            webhooks,
            actual: HashMap::new(),
            reporting: None,
        }
    }

    /// Something has happened to the subscribers of a channel.
    pub(crate) fn observe(
        &mut self,
        channel: ChannelName<'_>,
        event: &PresenceEvent,
        now: SteadyTime,
    ) {
        let name = channel.as_str();
        let state = self.actual.entry(name.into()).or_default();
        let (part, pause) = match &event.change {
            PresenceChange::Occupied => {
                state.is_occupied = true;
                (ChannelPart::Occupancy, Duration::ZERO)
            }
            PresenceChange::Vacated => {
                *state = ChannelState::default();
                (ChannelPart::Occupancy, GONE_PAUSE)
            }
            PresenceChange::Joined(member) => {
                if channel.is_presence() {
                    state.members.insert(member.id.clone());
                }
                (ChannelPart::Member(member.id.clone()), Duration::ZERO)
            }
            PresenceChange::Left(member) => {
                state.members.remove(&member.id);
                (ChannelPart::Member(member.id.clone()), GONE_PAUSE)
            }
            PresenceChange::Counted => {
                state.subscriptions = event.connections;
                (ChannelPart::Subscriptions, COUNT_PAUSE)
            }
            PresenceChange::Updated(_) => return,
        };
        if *state == ChannelState::default() {
            self.actual.remove(name);
        }
        let Some(reporting) = &mut self.reporting else {
            return;
        };
        if event.change == PresenceChange::Vacated {
            // It has no subscriptions any more, either.
            reporting.compare_at(name, ChannelPart::Subscriptions, now.after(COUNT_PAUSE));
        }
        reporting.compare_at(name, part, now.after(pause));
    }

    /// This node reports from now on. It must be told what the log has, and then of the end of that.
    pub(crate) fn begin(&mut self) {
        self.reporting = Some(Reporting::default());
    }

    /// This node does not report any more.
    pub(crate) fn end(&mut self) {
        self.reporting = None;
    }

    /// The node has all that was in the log when it began, of which the beginning `is_trimmed`, or not. Everything is compared once the
    /// subscribers of the last node, and those of a server that was restarted, have had time to come back. False: the node can't know all that
    /// was told.
    pub(crate) fn restored(&mut self, is_trimmed: bool, now: SteadyTime) -> bool {
        let Some(reporting) = &mut self.reporting else {
            return true;
        };
        reporting.is_restored = true;
        let knows_all = reporting.repetition.restored(is_trimmed, now);
        let at = now.after(RETURN_PAUSE);
        for (channel, state) in self.actual.iter().chain(&reporting.told) {
            let members = state.members.iter().cloned().map(ChannelPart::Member);
            for part in [ChannelPart::Occupancy, ChannelPart::Subscriptions]
                .into_iter()
                .chain(members)
            {
                let channel = channel.clone();
                reporting.due.insert(ChannelSubject { channel, part }, at);
            }
        }
        knows_all
    }

    /// The log has a record.
    pub(crate) fn told(&mut self, data: (&[u8], u32, u32), now: SteadyTime) {
        let (data, skip, take) = data;
        if let Some(reporting) = &mut self.reporting {
            reporting.repetition.grow(data.len());
        }
        json::each(data, skip, take, |_, message| {
            let record: Option<&RawValue> = serde_json::from_slice(message).ok();
            if let Some(event) = record.and_then(WebhookEvent::parse) {
                self.told_event(&event, now);
            }
        });
    }

    fn told_event(&mut self, event: &WebhookEvent<'_>, now: SteadyTime) {
        let Some(reporting) = &mut self.reporting else {
            return;
        };
        let channel = &*event.channel;
        if event.again {
            let is_live = reporting.is_restored;
            reporting.repetition.read_again(event, is_live, now);
            // A node that reports knows what was told, and more than what stands in the log again.
            if is_live {
                return;
            }
        }
        let Some(kind) = event.kind().filter(|kind| kind.is_of_state()) else {
            return;
        };
        let state = reporting.told.entry(channel.into()).or_default();
        let member = || event.user_id.as_deref().unwrap_or_default();
        let part = match kind {
            WebhookKind::ChannelOccupied | WebhookKind::ChannelVacated => {
                state.is_occupied = kind == WebhookKind::ChannelOccupied;
                ChannelPart::Occupancy
            }
            WebhookKind::MemberAdded => {
                state.members.insert(member().into());
                ChannelPart::Member(member().into())
            }
            WebhookKind::MemberRemoved => {
                state.members.remove(member());
                ChannelPart::Member(member().into())
            }
            _ => {
                state.subscriptions = event.subscription_count.unwrap_or_default();
                ChannelPart::Subscriptions
            }
        };
        if *state == ChannelState::default() {
            reporting.told.remove(channel);
        }
        let subject = ChannelSubject {
            channel: channel.into(),
            part,
        };
        if !event.again {
            reporting.repetition.read(&subject);
        }
        if !reporting.is_restored {
            return;
        }
        // Something may have changed while the record was on its way.
        let (actual, told) = (self.actual.get(channel), reporting.told.get(channel));
        let differs = difference(actual, told, &subject.part).is_some();
        match (differs, &subject.part) {
            (true, ChannelPart::Subscriptions) => {
                reporting.due.insert(subject, now.after(COUNT_PAUSE));
            }
            // If there is one that waits, its record may be on its way.
            (true, _) => drop(reporting.due.entry(subject).or_insert(now)),
            (false, _) => drop(reporting.due.remove(&subject)),
        }
    }

    /// The records that are to be written now, among them at most `public_max` about public channels. What is not in the log after a while
    /// comes again.
    pub(crate) fn due(&mut self, public_max: usize, now: SteadyTime) -> Vec<Vec<u8>> {
        let Some(reporting) = &mut self.reporting else {
            return Vec::new();
        };
        let Reporting {
            told,
            due,
            repetition,
            ..
        } = reporting;
        let (actual, webhooks) = (&self.actual, &self.webhooks);
        let mut events: Vec<(WebhookKind, ChannelSubject)> = Vec::new();
        let mut public_left = public_max;
        due.retain(|subject, at| {
            if *at > now {
                return true;
            }
            let channel = &subject.channel;
            let kind = difference(actual.get(channel), told.get(channel), &subject.part);
            // The log has both sides of a change, so that it says what is.
            let is_wanted = |kind: WebhookKind| {
                let mut sides = [kind, kind.opposite()].into_iter();
                sides.any(|kind| webhooks.iter().any(|one| one.wants(kind, channel)))
            };
            let Some(kind) = kind.filter(|kind| is_wanted(*kind)) else {
                return false;
            };
            // Public subjects over the limit stay due. A change that is undone before it is written needs no record.
            if is_public(channel) {
                if public_left == 0 {
                    return true;
                }
                public_left -= 1;
            }
            events.push((kind, subject.clone()));
            *at = now.after(REPEAT_PAUSE);
            true
        });
        events.sort_by_cached_key(in_order);
        let records = events.iter().map(|(kind, subject)| {
            let channel = &*subject.channel;
            repetition.write(subject, now);
            let event = match &subject.part {
                ChannelPart::Occupancy => WebhookEvent::of_channel(*kind, channel),
                ChannelPart::Member(user) => WebhookEvent::of_member(*kind, channel, user),
                ChannelPart::Subscriptions => {
                    let state = actual.get(channel);
                    WebhookEvent::of_count(channel, state.map_or(0, |state| state.subscriptions))
                }
            };
            event.record()
        });
        records.collect()
    }

    /// The records that say again what was told, as far as it is time for them.
    pub(crate) fn repeated(&mut self, now: SteadyTime) -> Vec<Vec<u8>> {
        let Some(reporting) = &mut self.reporting else {
            return Vec::new();
        };
        let (told, repetition) = (&reporting.told, &mut reporting.repetition);
        let events = |channel: &str| {
            let told = told.get_key_value(channel);
            told.map_or(Vec::new(), |(channel, state)| state.events(channel))
        };
        repetition.next(told.keys(), events, now)
    }

    /// Some of what was to be said again could not be written: it begins anew.
    pub(crate) fn repeat_anew(&mut self, now: SteadyTime) {
        if let Some(reporting) = &mut self.reporting {
            reporting.repetition.begin_anew(now);
        }
    }
}

impl Reporting {
    fn compare_at(&mut self, channel: &str, part: ChannelPart, at: SteadyTime) {
        // A number that changes all the time is told now and then.
        let is_counted = part == ChannelPart::Subscriptions;
        let channel = channel.into();
        let due = self
            .due
            .entry(ChannelSubject { channel, part })
            .or_insert(at);
        if !is_counted {
            *due = at;
        }
    }
}

/// Whether anybody may subscribe to a channel.
fn is_public(channel: &str) -> bool {
    ChannelName::parse(channel).is_ok_and(|channel| !channel.is_private())
}

/// Members leave before their channel is vacated, and join after it is occupied.
fn in_order((kind, subject): &(WebhookKind, ChannelSubject)) -> (u8, Box<str>, ChannelPart) {
    let rank = match kind {
        WebhookKind::MemberRemoved => 0,
        WebhookKind::ChannelVacated => 1,
        WebhookKind::ChannelOccupied => 2,
        WebhookKind::MemberAdded => 3,
        _ => 4,
    };
    (rank, subject.channel.clone(), subject.part.clone())
}

/// Who comes back within this time was not gone: a reload of a page is no event.
const GONE_PAUSE: Duration = Duration::from_secs(3);

/// How long a change of a number of subscriptions waits for further ones.
pub(crate) const COUNT_PAUSE: Duration = Duration::from_secs(1);

/// How long a node that begins to report waits for subscribers to come back, and for what other nodes say of theirs.
pub(crate) const RETURN_PAUSE: Duration = Duration::from_secs(5);

/// When what is not in the log yet is written again: the command that had it was lost.
const REPEAT_PAUSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
