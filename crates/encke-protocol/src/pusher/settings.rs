//! The apps as they are configured.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use encke_stream::{AckLevel, Retention};
use encke_subscriptions::{AllowedAddresses, BadWebhookUrl, WebhookUrl};

use super::shared::SharedByApp;
use super::stream_names::prefix_of;
use super::webhook::WebhookKind;
use crate::gate::Origins;

/// The settings of the Pusher protocol.
#[derive(Clone, Debug, Default)]
pub struct PusherSettings {
    apps: Vec<PusherApp>,
    /// What connections and reporters share, of each app.
    shared: Vec<Arc<SharedByApp>>,
    seed: [u8; 32],
}

/// An app: a namespace of channels, with the credentials of its clients and servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PusherApp {
    /// Names it in the paths of requests and in the names of its streams.
    pub id: String,
    /// Names it where clients connect. It is no secret.
    pub key: String,
    /// Signs requests and subscriptions.
    pub secret: AppSecret,
    /// An app that is not enabled refuses clients and requests.
    pub enabled: bool,
    /// The pages that may connect.
    pub origins: Origins,
    /// How much of each channel is retained. `None`: everything.
    pub retention: Option<Retention>,
    /// Seconds after its last event or subscription after which a channel's stream ends. `None`: never.
    pub ttl_s: Option<u64>,
    /// The durability level of events. `None`: the server's.
    pub ack: Option<AckLevel>,
    /// Connections at a time. `None`: as many as the server has room for.
    pub connections_max: Option<usize>,
    /// Channels that have a stream: clients with no more than the key create them.
    pub channels_max: usize,
    /// Channels that a connection may be subscribed to.
    pub channels_per_connection_max: usize,
    /// Bytes of the data of an event.
    pub event_bytes_max: usize,
    /// Clients may send events to each other.
    pub client_events: bool,
    /// Such events that a connection may send within a second.
    pub client_events_per_second: u32,
    /// Members of a presence channel.
    pub presence_members_max: usize,
    /// How long a member stays after its last connection is gone.
    pub presence_grace: Duration,
    /// Clients are told how many subscriptions a channel has.
    pub subscription_count: bool,
    /// Clients may begin in the past of a channel, not only where they were.
    pub rewind: bool,
    /// Clients that have signed in are told when users of their watchlists come and go.
    pub watchlists: bool,
    /// Which servers are told what happens to channels.
    pub webhooks: Vec<PusherWebhook>,
}

/// A server that is told what happens to channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PusherWebhook {
    /// Where it is called.
    pub(super) url: Box<str>,
    /// What it is told of.
    pub(super) kinds: Vec<WebhookKind>,
    /// It is told of channels whose names begin so.
    pub(super) channels: Box<str>,
}

/// Why a webhook can't be as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPusherWebhook {
    /// Its URL can't be called.
    #[error(transparent)]
    Url(#[from] BadWebhookUrl),
    /// There is nothing to call it for.
    #[error("it is told of nothing: events is empty")]
    NoKinds,
}

/// The secret of an app, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct AppSecret(Box<str>);

/// Why apps can't be as they are configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPusherApp {
    /// An id or key has a wrong form.
    #[error(
        "the {what} {text:?} has not 1 to {NAME_BYTES_MAX} of the characters A-Z, a-z, 0-9, - and _"
    )]
    Name {
        /// `id` or `key`.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// Two apps have the same id or key.
    #[error("two apps have the {what} {text:?}")]
    Twice {
        /// `id` or `key`.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// Two webhooks of an app have the same URL: how far each has got could not be told apart.
    #[error(
        "two webhooks of the app {id:?} have the URL {url}, one can be told of all that both are"
    )]
    WebhookTwice {
        /// The app's id.
        id: String,
        /// The URL of the second one.
        url: String,
    },
    /// A secret is too short to sign with.
    #[error(
        "the secret of the app {id:?} has {bytes} bytes, at least {SECRET_BYTES_MIN} are needed"
    )]
    ShortSecret {
        /// The app's id.
        id: String,
        /// The secret's bytes.
        bytes: usize,
    },
}

impl PusherSettings {
    /// The settings of these apps. `seed` is secret and random; socket ids are made of it.
    ///
    /// # Errors
    /// See [`BadPusherApp`].
    pub fn new(apps: Vec<PusherApp>, seed: [u8; 32]) -> Result<Self, BadPusherApp> {
        for (at, app) in apps.iter().enumerate() {
            for (what, text, of) in [
                ("id", &app.id, (|app| &app.id) as fn(&PusherApp) -> &String),
                ("key", &app.key, |app| &app.key),
            ] {
                let text = text.clone();
                if !is_name(&text) {
                    return Err(BadPusherApp::Name { what, text });
                }
                if apps[..at].iter().any(|other| *of(other) == text) {
                    return Err(BadPusherApp::Twice { what, text });
                }
            }
            let bytes = app.secret.expose().len();
            if bytes < SECRET_BYTES_MIN {
                let id = app.id.clone();
                return Err(BadPusherApp::ShortSecret { id, bytes });
            }
            let mut urls = HashSet::new();
            for webhook in &app.webhooks {
                if !urls.insert(&webhook.url) {
                    let (id, url) = (app.id.clone(), webhook.url.to_string());
                    return Err(BadPusherApp::WebhookTwice { id, url });
                }
            }
        }
        let shared = apps.iter().map(|_| Arc::default()).collect();
        Ok(PusherSettings { apps, shared, seed })
    }

    /// What the names of the streams of all apps begin with.
    pub fn prefixes(&self) -> Vec<Box<str>> {
        self.apps.iter().map(|app| prefix_of(&app.id)).collect()
    }

    /// The apps.
    pub fn apps(&self) -> &[PusherApp] {
        &self.apps
    }

    /// What connections and reporters share, of each app.
    pub(super) fn shared(&self) -> &[Arc<SharedByApp>] {
        &self.shared
    }

    pub(super) fn seed(&self) -> &[u8; 32] {
        &self.seed
    }
}

impl PusherApp {
    /// An app with the defaults for everything else.
    pub fn new(id: impl Into<String>, key: impl Into<String>, secret: AppSecret) -> Self {
        PusherApp {
            id: id.into(),
            key: key.into(),
            secret,
            enabled: true,
            origins: Origins::Any,
            retention: None,
            ttl_s: None,
            ack: None,
            connections_max: None,
            channels_max: CHANNELS_MAX,
            channels_per_connection_max: CHANNELS_PER_CONNECTION_MAX,
            event_bytes_max: EVENT_BYTES_MAX,
            client_events: false,
            client_events_per_second: CLIENT_EVENTS_PER_SECOND,
            presence_members_max: PRESENCE_MEMBERS_MAX,
            presence_grace: Duration::ZERO,
            subscription_count: false,
            rewind: false,
            watchlists: false,
            webhooks: Vec::new(),
        }
    }

    /// Whether any server is told of such an event of a channel.
    pub(super) fn has_webhook(&self, kind: WebhookKind, channel: &str) -> bool {
        self.webhooks
            .iter()
            .any(|webhook| webhook.wants(kind, channel))
    }
}

impl PusherWebhook {
    /// A webhook at this URL, which is told of these things where they happen to channels whose names begin so.
    ///
    /// # Errors
    /// See [`BadPusherWebhook`].
    pub fn new(
        url: &str,
        kinds: Vec<WebhookKind>,
        channels: &str,
    ) -> Result<Self, BadPusherWebhook> {
        // The operator knows where it leads.
        WebhookUrl::parse(url, &AllowedAddresses::everything())?;
        if kinds.is_empty() {
            return Err(BadPusherWebhook::NoKinds);
        }
        Ok(PusherWebhook {
            url: url.into(),
            kinds,
            channels: channels.into(),
        })
    }

    /// Whether it is told of such an event of a channel.
    pub(super) fn wants(&self, kind: WebhookKind, channel: &str) -> bool {
        self.kinds.contains(&kind) && channel.starts_with(&*self.channels)
    }
}

impl AppSecret {
    /// The text.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for AppSecret {
    fn from(text: &str) -> Self {
        AppSecret(text.into())
    }
}

impl fmt::Debug for AppSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AppSecret")
    }
}

/// Whether a text can be an id or a key: both are segments of paths.
fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Bytes of an id or a key.
const NAME_BYTES_MAX: usize = 64;

/// Bytes of a secret: what Pusher gives out has 20.
const SECRET_BYTES_MIN: usize = 16;

/// Channels that have a stream, unless an app names another number.
const CHANNELS_MAX: usize = 1_000_000;

/// Channels of a connection, unless an app names another number.
const CHANNELS_PER_CONNECTION_MAX: usize = 100;

/// Bytes of the data of an event, unless an app names another number: what Pusher allows.
const EVENT_BYTES_MAX: usize = 10 << 10;

/// Events that a client may send within a second, unless an app names another number: what Pusher allows.
const CLIENT_EVENTS_PER_SECOND: u32 = 10;

/// Members of a presence channel, unless an app names another number.
const PRESENCE_MEMBERS_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn app(id: &str, key: &str, secret: &str) -> PusherApp {
        PusherApp::new(id, key, secret.into())
    }

    fn judged(apps: Vec<PusherApp>) -> Result<(), String> {
        let settings = PusherSettings::new(apps, [0; 32]);
        settings.map(drop).map_err(|why| why.to_string())
    }

    #[test]
    fn ids_and_keys_are_segments_and_unique() {
        let secret = "0123456789abcdef";
        let fine = vec![app("1", "a-B_9", secret), app("a-B_9", "1", secret)];
        assert_eq!(judged(fine), Ok(()));
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for (id, key, secret, word) in [
            ("", "k", secret, "the id \"\""),
            ("1/2", "k", secret, "the id"),
            (&long, "k", secret, "the id"),
            ("1", "k y", secret, "the key"),
            ("1", "ä", secret, "the key"),
            ("first", "k", secret, "two apps have the id \"first\""),
            ("1", "key", secret, "two apps have the key \"key\""),
            ("1", "k", &secret[1..], "has 15 bytes, at least 16"),
        ] {
            let apps = vec![app("first", "key", secret), app(id, key, secret)];
            let apps = match word.contains("15") {
                true => vec![app(id, key, secret)],
                false => apps,
            };
            let why = judged(apps).unwrap_err();
            assert!(why.contains(word), "{why}");
        }
        let shown = format!("{:?}", app("1", "k", secret));
        assert!(!shown.contains(secret), "{shown}");
    }
}
