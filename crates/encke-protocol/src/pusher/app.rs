//! An app while the server runs: its settings, its keys and its connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::digest;
use encke_stream::AccountId;

use super::settings::PusherApp;
use super::shared::SharedByApp;
use super::signature::AppSigner;
use super::stream_names::prefix_of;
use super::webhook::{WebhookEvent, WebhookKind};

/// An app.
#[derive(Debug)]
pub(super) struct App {
    pub(super) settings: PusherApp,
    pub(super) signer: AppSigner,
    /// What the names of its streams begin with.
    pub(super) prefix: Box<str>,
    /// It pays for the streams of the channels.
    pub(super) account: AccountId,
    connections: AtomicUsize,
    pub(super) shared: Arc<SharedByApp>,
}

/// The place of a connection. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct ConnectionPlace(Arc<App>);

impl App {
    pub(super) fn new(settings: PusherApp, shared: Arc<SharedByApp>) -> Self {
        App {
            signer: AppSigner::new(&settings.secret),
            prefix: prefix_of(&settings.id),
            account: account(&settings.id),
            shared,
            connections: AtomicUsize::new(0),
            settings,
        }
    }

    /// Whether a stream is one of its own.
    pub(super) fn has_stream(&self, name: &str) -> bool {
        name.starts_with(&*self.prefix)
    }

    /// The group of the awaited names of its channels. Private channels, whose subscriptions it signs, are counted apart from public ones.
    pub(super) fn awaited_group(&self, is_private: bool) -> u64 {
        self.account.0[0] << 1 | u64::from(is_private)
    }

    /// The name of the stream of a channel.
    pub(super) fn stream(&self, channel: &str) -> String {
        format!("{}{channel}", self.prefix)
    }

    /// A client has done something: the servers are told that want to know.
    pub(super) fn report(&self, event: &WebhookEvent<'_>) {
        let kind = event.kind();
        let Some(kind) = kind.filter(|kind| self.settings.has_webhook(*kind, event.channel()))
        else {
            return;
        };
        let queue = &self.shared.webhooks;
        match kind {
            // A client can cause any number of them.
            WebhookKind::CacheMiss => queue.push_once(event.record()),
            _ => queue.push(event.record()),
        }
    }

    /// A place for a connection; `None` if all are taken.
    pub(super) fn take_place(self: &Arc<Self>) -> Option<ConnectionPlace> {
        let max = self.settings.connections_max.unwrap_or(usize::MAX);
        let more = |taken: usize| (taken < max).then_some(taken + 1);
        let taken = self
            .connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok().then(|| ConnectionPlace(Arc::clone(self)))
    }

    /// A place for a connection that another process had: it keeps it, whatever the settings of this one say.
    pub(super) fn keep_place(self: &Arc<Self>) -> ConnectionPlace {
        self.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionPlace(Arc::clone(self))
    }
}

impl ConnectionPlace {
    pub(super) fn app(&self) -> &Arc<App> {
        &self.0
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The account of the app with that id: no caller has it.
fn account(id: &str) -> AccountId {
    let digest = digest::digest(&digest::SHA256, format!("pusher app {id}").as_bytes());
    let (words, _) = digest.as_ref().as_chunks::<8>();
    AccountId([u64::from_be_bytes(words[0]), u64::from_be_bytes(words[1])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_free_again_when_its_connection_is_gone() {
        let settings = PusherApp {
            connections_max: Some(2),
            ..PusherApp::new("1", "k", "0123456789abcdef".into())
        };
        let app = Arc::new(App::new(settings, Arc::default()));
        let (one, two) = (app.take_place(), app.take_place());
        assert!(one.is_some() && two.is_some() && app.take_place().is_none());
        drop(one);
        let again = app.take_place();
        assert!(again.is_some() && app.take_place().is_none());
        // One more than allowed, which another process has let in.
        let kept = app.keep_place();
        drop(two);
        assert!(app.take_place().is_none());
        drop(kept);
        assert!(app.take_place().is_some());
    }

    #[test]
    fn a_stream_names_its_channel() {
        let app = App::new(
            PusherApp::new("a1", "k", "0123456789abcdef".into()),
            Arc::default(),
        );
        assert_eq!(app.stream("private-x"), "app/a1/private-x");
    }
}
