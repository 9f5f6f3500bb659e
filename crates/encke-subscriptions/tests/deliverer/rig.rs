//! A deliverer whose results a test sees, and names that lead where the test wants.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use encke_client::ClientRules;
use encke_clock::Now;
use encke_subscriptions::{
    AllowedAddresses, Deliverer, DelivererContext, DeliveryResult, LinkStatus, ResolveNames,
    SystemNames, WakeNotice, WebhookDelivery, WebhookKey,
};

/// Longer than any call of a test that ends by itself.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A deliverer, and the results that it reports.
pub(crate) struct Rig {
    pub(crate) deliverer: Deliverer,
    pub(crate) results: mpsc::Receiver<(u64, DeliveryResult)>,
    next: AtomicU64,
    pub(crate) key: Arc<WebhookKey>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(8, &["127.0.0.0/8"], Arc::new(SystemNames::default()))
    }

    pub(crate) fn with(threads_max: usize, networks: &[&str], names: Arc<dyn ResolveNames>) -> Rig {
        Rig::with_rules(threads_max, networks, names, ClientRules::default())
    }

    pub(crate) fn with_rules(
        threads_max: usize,
        networks: &[&str],
        names: Arc<dyn ResolveNames>,
        client: ClientRules,
    ) -> Rig {
        let (sender, results) = mpsc::channel();
        let sender = std::sync::Mutex::new(sender);
        let networks = networks.iter().map(|network| network.parse().unwrap());
        let deliverer = Deliverer::new(DelivererContext {
            threads_max,
            allowed_addresses: AllowedAddresses {
                networks: networks.collect(),
            },
            names,
            client,
            clock: || Now::from_ms(1_700_000_000_000),
            report: Box::new(move |number, result| {
                let _ = sender.lock().unwrap().send((number, result));
            }),
        });
        Rig {
            deliverer,
            results,
            next: AtomicU64::new(0),
            key: Arc::new(WebhookKey::of(&[7; 32])),
        }
    }

    /// Begins a call.
    pub(crate) fn begin(&self, url: &str, timeout: Duration) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.deliverer.deliver(Box::new(WebhookDelivery {
            number,
            url: url.into(),
            timeout,
            key: Arc::clone(&self.key),
            notice: notice(),
        }));
        number
    }

    /// Makes a call and waits for its result.
    pub(crate) fn call(&self, url: &str) -> DeliveryResult {
        let number = self.begin(url, LONG);
        let (reported, result) = self.results.recv().unwrap();
        assert_eq!(reported, number);
        result
    }
}

pub(crate) fn notice() -> WakeNotice {
    WakeNotice {
        subscription: "s".into(),
        wake_id: "w_1".into(),
        generation: 7,
        links: vec![LinkStatus {
            stream: "events/a".into(),
            explicit: false,
            acked: encke_stream::Offset::START,
            tail: encke_stream::Offset::behind(7),
            has_pending: true,
        }],
        callback_url: "http://127.0.0.1/callback".into(),
        callback_token: "token".into(),
    }
}

/// Names that lead to fixed addresses.
#[derive(Debug, Default)]
pub(crate) struct FixedNames(HashMap<String, Vec<SocketAddr>>);

impl FixedNames {
    pub(crate) fn one(name: &str, addresses: &[SocketAddr]) -> Arc<FixedNames> {
        Arc::new(FixedNames(HashMap::from([(
            name.to_owned(),
            addresses.to_vec(),
        )])))
    }
}

impl ResolveNames for FixedNames {
    fn resolve(&self, name: &str, _: Duration) -> io::Result<Vec<SocketAddr>> {
        let (name, port) = name.rsplit_once(':').unwrap();
        let found = self.0.get(name).cloned();
        let mut found = found.ok_or(io::ErrorKind::NotFound)?;
        for address in &mut found {
            if address.port() == 0 {
                address.set_port(port.parse().unwrap());
            }
        }
        Ok(found)
    }
}

pub(crate) fn failure(result: DeliveryResult) -> String {
    match result {
        DeliveryResult::Failed(reason) => reason,
        result => panic!("{result:?}"),
    }
}
