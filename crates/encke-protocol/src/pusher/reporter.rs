//! What an app is told of its channels, beside events: clients the number of subscriptions, and servers what their webhooks ask for.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;
use encke_clock::{Now, SteadyTime};
use encke_presence::{Presence, PresenceChange, PresenceEvent};
use encke_stream::{
    Append, Command, Create, Data, EphemeralMessage, Item, Offset, Retention, Stream, Target, Views,
};
use serde_json::json;

use super::channel_name::ChannelName;
use super::channel_stream::MEDIA;
use super::event::{NewData, NewEvent};
use super::settings::{PusherApp, PusherSettings, PusherWebhook};
use super::shared::SharedByApp;
use super::signature::{AppSigner, encode_hex};
use super::stream_names::{WEBHOOK_LOG, WEBHOOK_REACHED, prefix_of};
use super::user::channel_of_user;
use super::watchlist::{WATCHLIST_EVENTS, WatchedUsers, is_online, user_of_online};
use super::webhook::{COUNT_PAUSE, ChannelReports, RETURN_PAUSE, WebhookBatch, WebhookKind};

/// Reports on the channels of one app.
pub struct AppReporter {
    prefix: Box<str>,
    webhooks: Arc<[AppWebhook]>,
    shared: Arc<SharedByApp>,
    reports: ChannelReports,
    /// Clients are told how many subscriptions a channel has.
    tells_counts: bool,
    /// The channels whose subscribers are to be told, and when.
    counts: HashMap<Box<str>, SteadyTime>,
    /// Users who came or went, and whether they are online now.
    users: BTreeMap<Box<str>, bool>,
    /// When watchers who came with another process are to be told who is online, if there are any: who has gone meanwhile was never here.
    moved: Option<SteadyTime>,
}

/// A webhook of an app.
pub struct AppWebhook {
    settings: PusherWebhook,
    key: Box<str>,
    signer: AppSigner,
    log: Box<str>,
    reached: Box<str>,
}

/// A stream of an app that holds no channel's events.
#[derive(Clone, Copy, Debug)]
pub struct ReportStream<'a> {
    /// Its name.
    pub name: &'a str,
    retention: Retention,
}

impl PusherSettings {
    /// The reporters of the apps that need one. `registry`: it says who is subscribed. To be called before anybody is.
    pub fn reporters(&self, registry: &Presence) -> Vec<AppReporter> {
        let apps = self.apps().iter().zip(self.shared());
        let apps = apps.filter(|(app, _)| {
            app.subscription_count || app.watchlists || !app.webhooks.is_empty()
        });
        apps.map(|(app, shared)| AppReporter::new(app, Arc::clone(shared), registry))
            .collect()
    }
}

impl AppReporter {
    fn new(app: &PusherApp, shared: Arc<SharedByApp>, registry: &Presence) -> Self {
        let prefix = prefix_of(&app.id);
        let mut kinds = app.webhooks.iter().flat_map(|webhook| &webhook.kinds);
        let tells_counts = app.subscription_count;
        if tells_counts || kinds.any(|kind| *kind == WebhookKind::SubscriptionCount) {
            registry.count_below(&prefix);
        }
        let webhook = |settings: &PusherWebhook| AppWebhook {
            key: app.key.as_str().into(),
            signer: AppSigner::new(&app.secret),
            log: format!("{prefix}{WEBHOOK_LOG}").into(),
            reached: format!("{prefix}{WEBHOOK_REACHED}{}", digest(&settings.url)).into(),
            settings: settings.clone(),
        };
        AppReporter {
            webhooks: app.webhooks.iter().map(webhook).collect(),
            reports: ChannelReports::new(app.webhooks.clone()),
            shared,
            tells_counts,
            counts: HashMap::new(),
            users: BTreeMap::new(),
            moved: None,
            prefix,
        }
    }

    /// The webhooks.
    pub fn webhooks(&self) -> &Arc<[AppWebhook]> {
        &self.webhooks
    }

    /// The stream with what the webhooks are told of. `None`: there are no webhooks.
    pub fn log(&self) -> Option<ReportStream<'_>> {
        let webhook = self.webhooks.first()?;
        Some(webhook.log())
    }

    /// Something has happened to the subscribers of streams.
    pub fn observe(&mut self, events: &[PresenceEvent], now: SteadyTime) {
        for event in events {
            let Some(name) = event.stream.strip_prefix(&*self.prefix) else {
                continue;
            };
            if let Some(user) = user_of_online(name) {
                match event.change {
                    PresenceChange::Joined(_) => drop(self.users.insert(user.into(), true)),
                    PresenceChange::Left(_) => drop(self.users.insert(user.into(), false)),
                    _ => {}
                }
                continue;
            }
            let Ok(channel) = ChannelName::parse(name) else {
                continue;
            };
            if self.tells_counts
                && event.change == PresenceChange::Counted
                && !channel.is_presence()
            {
                let at = now.after(COUNT_PAUSE);
                self.counts.entry(channel.as_str().into()).or_insert(at);
            }
            if !self.webhooks.is_empty() {
                self.reports.observe(channel, event, now);
            }
        }
    }

    /// This node writes what happens to channels from now on. It must be [`told`](Self::told) what is in the log, and then that
    /// [it is restored](Self::restored).
    pub fn begin(&mut self) {
        self.reports.begin();
    }

    /// Another node does that.
    pub fn end(&mut self) {
        self.reports.end();
    }

    /// All that was in the log at the begin was told. `is_trimmed`: it had more before. False: what was told in the past can't be known
    /// from it.
    pub fn restored(&mut self, is_trimmed: bool, now: SteadyTime) -> bool {
        self.reports.restored(is_trimmed, now)
    }

    /// The log has a record.
    pub fn told(&mut self, item: &Item<'_>, now: SteadyTime) {
        self.reports.told((item.data, item.skip, item.take), now);
    }

    /// The appends that report changes of channels, with at most `public_max` events of public channels. An append that fails is made again.
    pub fn of_channels(&mut self, public_max: usize, now: SteadyTime) -> Vec<Data> {
        appends(self.reports.due(public_max, now))
    }

    /// What was told before and is to stand in the log again, as the data of appends. If some of it can't be written, it is to be
    /// [repeated anew](Self::repeat_anew).
    pub fn repeated(&mut self, now: SteadyTime) -> Vec<Data> {
        appends(self.reports.repeated(now))
    }

    /// Begins anew with what is to stand in the log again, after a while.
    pub fn repeat_anew(&mut self, now: SteadyTime) {
        self.reports.repeat_anew(now);
    }

    /// What clients did and is to be written to the log now, as the data of appends.
    pub fn of_clients(&self) -> Vec<Data> {
        appends(self.shared.webhooks.take())
    }

    /// Events of clients that were dropped since the last call, because too many waited.
    pub fn take_dropped(&self) -> u64 {
        self.shared.webhooks.take_dropped()
    }

    /// What the clients of this node are to be told now: of numbers of subscriptions, and of users that they watch. `find` finds a stream, in
    /// memory or at rest: one in which nothing happens leaves memory although it has subscribers.
    pub fn messages(
        &mut self,
        (registry, views): (&Presence, &Views),
        mut find: impl FnMut(&str) -> Option<Arc<Stream>>,
        now: Now,
    ) -> Vec<EphemeralMessage> {
        let prefix = &self.prefix;
        let mut messages = Vec::new();
        let mut tell = |name: &str, event: &str, data: &str| {
            let event = NewEvent {
                name: event,
                data: Some(NewData::Text(data)),
                socket: None,
                user: None,
            };
            // Before its first event a channel has no stream.
            let awaiting = EphemeralMessage::to_awaiting(views, name, || event.record(), now.wall);
            let message = awaiting.or_else(|| {
                let stream = find(name)?;
                EphemeralMessage::new(&stream, None, event.record(), now.wall).ok()
            });
            messages.extend(message);
        };
        self.counts.retain(|channel, at| {
            if *at > now.steady {
                return true;
            }
            let name = format!("{prefix}{channel}");
            if registry.local_connections(&name) == 0 {
                return false;
            }
            let count = registry.counts(&name).connections;
            let data = json!({ "subscription_count": count }).to_string();
            tell(&name, "pusher_internal:subscription_count", &data);
            false
        });
        let watchers = &self.shared.watchers;
        let mut tell_watcher = |watcher: &str, users: &WatchedUsers| {
            let name = format!("{prefix}{}", channel_of_user(watcher));
            tell(&name, WATCHLIST_EVENTS, &users.data());
        };
        if !self.users.is_empty() {
            for (watcher, users) in watchers.told(&self.users) {
                tell_watcher(&watcher, &users);
            }
            self.users.clear();
        }
        if watchers.has_moved() {
            self.moved.get_or_insert(now.steady.after(RETURN_PAUSE));
        }
        let is_online = |user: &str| is_online(registry, prefix, user);
        if self.moved.is_some_and(|at| at <= now.steady) {
            // A few at a time, so that none is dropped because too much waits.
            let some = std::iter::from_fn(|| watchers.pop_moved()).take(MOVED_AT_ONCE);
            for (watcher, watched) in some {
                tell_watcher(&watcher, &WatchedUsers::of(&watched, is_online));
            }
            if !watchers.has_moved() {
                self.moved = None;
            }
        }
        messages
    }
}

/// What stands for a URL in the name of a stream: the URL may hold a secret.
fn digest(url: &str) -> String {
    let digest = digest::digest(&digest::SHA256, url.as_bytes());
    encode_hex(&digest.as_ref()[..DIGEST_BYTES])
}

/// Appends of these records.
fn appends(records: Vec<Vec<u8>>) -> Vec<Data> {
    let mut appends: Vec<Data> = Vec::new();
    for record in records {
        match appends.last_mut() {
            Some(Data { bytes, units }) if bytes.len() < APPEND_BYTES => {
                bytes.push(b',');
                bytes.extend_from_slice(&record);
                *units += 1;
            }
            _ => appends.push(Data {
                bytes: record,
                units: 1,
            }),
        }
    }
    appends
}

impl AppWebhook {
    /// Where it is called.
    pub fn url(&self) -> &str {
        &self.settings.url
    }

    /// Scheme, name and port: the rest may hold a secret.
    pub fn receiver(&self) -> &str {
        let url = self.url();
        let host = url.find("://").map_or(0, |at| at + 3);
        let rest = url[host..].find(['/', '?']);
        rest.map_or(url, |rest| &url[..host + rest])
    }

    /// The stream with what it is told of.
    pub fn log(&self) -> ReportStream<'_> {
        ReportStream {
            name: &self.log,
            retention: LOG_RETENTION,
        }
    }

    /// The stream whose last record says up to where it was told.
    pub fn reached(&self) -> ReportStream<'_> {
        ReportStream {
            name: &self.reached,
            retention: REACHED_RETENTION,
        }
    }

    /// An empty batch of its events.
    pub fn batch(&self) -> WebhookBatch<'_> {
        WebhookBatch::new(&self.settings)
    }

    /// The fields of a call with that body, beside its type.
    pub fn fields(&self, body: &[u8]) -> [(&'static str, String); 2] {
        [
            ("X-Pusher-Key", self.key.to_string()),
            ("X-Pusher-Signature", self.signer.sign(body)),
        ]
    }

    /// The record that says up to where it was told.
    pub fn reached_record(at: Offset) -> Data {
        Data {
            bytes: json!({ "reached": at.to_string() })
                .to_string()
                .into_bytes(),
            units: 1,
        }
    }

    /// Reads such a record. `None`: it is something else.
    pub fn parse_reached(record: &[u8]) -> Option<Offset> {
        let record: serde_json::Value = serde_json::from_slice(record).ok()?;
        record["reached"].as_str()?.parse().ok()
    }
}

impl ReportStream<'_> {
    /// The command that creates the stream, unless it is there.
    pub fn create(&self) -> Command {
        Command::Create(Create {
            content_type: Some(MEDIA.into()),
            retention: Some(self.retention),
            ..Create::new(self.name)
        })
    }

    /// The command that appends to it.
    pub fn append(&self, data: Data) -> Command {
        let target = Target::Read {
            name: self.name.into(),
            media: MEDIA.into(),
        };
        Command::Append(Append {
            data,
            ..Append::to(target)
        })
    }
}

impl fmt::Debug for AppReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppReporter").finish_non_exhaustive()
    }
}

impl fmt::Debug for AppWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppWebhook").finish_non_exhaustive()
    }
}

/// What the log of webhooks keeps: a server that can't be called for longer misses events.
const LOG_RETENTION: Retention = Retention {
    age_s: Some(24 * 3600),
    bytes: Some(128 << 20),
    records: None,
};

const REACHED_RETENTION: Retention = Retention {
    age_s: None,
    bytes: None,
    records: Some(10),
};

/// Bytes of a digest that stand for a URL.
const DIGEST_BYTES: usize = 16;

/// Bytes of an append, beside its last event.
const APPEND_BYTES: usize = 128 << 10;

/// Watchers who are told in one turn.
const MOVED_AT_ONCE: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_reads_back() {
        let at = Offset::behind(77);
        let record = AppWebhook::reached_record(at);
        assert_eq!(AppWebhook::parse_reached(&record.bytes), Some(at));
        assert_eq!(AppWebhook::parse_reached(b"{}"), None);
    }
}
