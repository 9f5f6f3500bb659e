//! The connection of a node or a command to one of the brokers.

use std::future::{Ready, ready};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use async_nats::{
    Client, ConnectError, ConnectErrorKind, ConnectOptions, ReconnectToServer, Server, ServerAddr,
    ServerInfo,
};
use parking_lot::Mutex;

use crate::error::FleetError;
use crate::settings::{BrokerAccess, BrokerLogin};

/// Connects to one of the brokers under a name that their tools show. Waits for one, at most for `timeout`.
pub(crate) async fn connect(
    access: &BrokerAccess,
    name: &str,
    timeout: Duration,
) -> Result<Client, FleetError> {
    let mut options = ConnectOptions::new()
        .name(name)
        .ping_interval(PING_EVERY)
        .connection_timeout(CONNECT_WITHIN)
        .request_timeout(Some(REQUEST_WITHIN))
        .subscription_capacity(SUBSCRIPTION_MESSAGES_MAX)
        .reconnect_to_server_callback(in_turn())
        .reconnect_delay_callback(|attempts| match attempts {
            0 | 1 => Duration::ZERO,
            _ => RECONNECT_EVERY,
        });
    if let Some(path) = &access.credentials {
        let read = encke_files::read_text(path).and_then(|text| options.credentials(&text));
        options = read.map_err(|source| FleetError::Credentials {
            path: path.display().to_string(),
            source,
        })?;
    }
    options = match access.brokers.login() {
        Some(BrokerLogin::User(user, password)) => options.user_and_password(user, password),
        Some(BrokerLogin::Token(token)) => options.token(token),
        None => options,
    };
    if let Some(ca) = &access.ca {
        options = options.add_root_certificates(ca.clone());
    }
    let until = tokio::time::Instant::now() + timeout;
    let mut warns_at = tokio::time::Instant::now();
    loop {
        let connected = options.clone().connect(access.brokers.0.clone()).await;
        match connected {
            Ok(client) => return Ok(client),
            // Brokers that refuse this user will do so again.
            Err(error) if is_refusal(&error) || tokio::time::Instant::now() >= until => {
                return Err(FleetError::NoBroker {
                    brokers: access.brokers.to_string(),
                    reason: error.to_string(),
                });
            }
            Err(error) => {
                if tokio::time::Instant::now() >= warns_at {
                    tracing::warn!(%error, brokers = %access.brokers, "no broker answers yet");
                    warns_at = tokio::time::Instant::now() + WARN_EVERY;
                }
                tokio::time::sleep(RECONNECT_EVERY).await;
            }
        }
    }
}

fn is_refusal(error: &ConnectError) -> bool {
    matches!(
        error.kind(),
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication
    )
}

/// Chooses the broker that was left the longest ago: one that is cut off from the others may be the easiest to reach.
fn in_turn() -> impl Fn(Vec<Server>, ServerInfo) -> Ready<Option<ReconnectToServer>> {
    // Nodes begin with different brokers.
    let begin = RandomState::new().hash_one(());
    let turn = Mutex::new(Turn::new(begin as usize));
    move |servers, _| {
        let servers: Vec<_> = servers.iter().map(known).collect();
        let address = turn.lock().take(&choice(&servers));
        ready(address.map(|addr| ReconnectToServer { addr, delay: None }))
    }
}

/// What the client knows of a broker.
struct KnownBroker<T> {
    address: T,
    /// The settings name it. Otherwise a broker has named it, and it may be one of those at another address.
    named: bool,
    reached: bool,
}

fn known(server: &Server) -> KnownBroker<&ServerAddr> {
    KnownBroker {
        address: &server.addr,
        named: !server.is_discovered,
        reached: server.failed_attempts == 0,
    }
}

/// The brokers to choose from: those that the settings name, as long as they are several and all can be reached.
fn choice<T: Copy + PartialEq>(brokers: &[KnownBroker<T>]) -> Vec<T> {
    let named = brokers.iter().filter(|broker| broker.named);
    let all_reached = named.clone().all(|broker| broker.reached);
    let named = addresses(named);
    match all_reached && named.len() > 1 {
        true => named,
        false => addresses(brokers.iter()),
    }
}

/// Their addresses, each once.
fn addresses<'a, T: Copy + PartialEq + 'a>(
    brokers: impl Iterator<Item = &'a KnownBroker<T>>,
) -> Vec<T> {
    let mut addresses = Vec::new();
    for broker in brokers {
        if !addresses.contains(&broker.address) {
            addresses.push(broker.address);
        }
    }
    addresses
}

/// Whether there is another broker than the one that is connected.
pub(crate) async fn has_others(client: &Client) -> bool {
    let pool = tokio::time::timeout(REQUEST_WITHIN, client.server_pool()).await;
    let Ok(Ok(pool)) = pool else { return false };
    let brokers: Vec<_> = pool.iter().map(known).collect();
    choice(&brokers).len() > 1
}

/// Whose turn it is.
struct Turn<T> {
    /// What was chosen, the last one at the end.
    chosen: Vec<T>,
    begin: usize,
}

impl<T: Clone + PartialEq> Turn<T> {
    fn new(begin: usize) -> Self {
        Turn {
            chosen: Vec::new(),
            begin,
        }
    }

    /// Takes the one that was not chosen yet, or the longest ago.
    fn take(&mut self, choice: &[&T]) -> Option<T> {
        self.chosen.retain(|chosen| choice.contains(&chosen));
        let begin = self.begin % choice.len().max(1);
        let (before, from) = choice.split_at(begin);
        let mut new = from.iter().chain(before);
        let next = match new.find(|next| !self.chosen.contains(next)) {
            Some(next) => (**next).clone(),
            None if self.chosen.is_empty() => return None,
            None => self.chosen.remove(0),
        };
        self.chosen.push(next.clone());
        Some(next)
    }
}

/// A connection that does not answer two of these is dead: another broker is found within the time for which appends are sent
/// again.
const PING_EVERY: Duration = Duration::from_secs(1);

/// How often a log line says that no broker answers.
const WARN_EVERY: Duration = Duration::from_secs(10);

const CONNECT_WITHIN: Duration = Duration::from_secs(2);

const REQUEST_WITHIN: Duration = Duration::from_secs(2);

/// Messages of the order that wait for a node. A node that is further behind asks for them again.
const SUBSCRIPTION_MESSAGES_MAX: usize = 8_192;

/// How long a command waits for a broker.
pub(crate) const COMMANDS_WAIT: Duration = Duration::from_secs(5);

/// The time between two attempts to connect, at all brokers together.
pub(crate) const RECONNECT_EVERY: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_that_others_name_are_for_when_a_named_one_cannot_be_reached() {
        let broker = |address, named, reached| KnownBroker {
            address,
            named,
            reached,
        };
        let mut brokers = [
            broker(1, true, true),
            broker(2, true, true),
            broker(2, true, true),
            broker(3, false, false),
        ];
        assert_eq!(choice(&brokers), [1, 2]);
        brokers[0].reached = false;
        assert_eq!(choice(&brokers), [1, 2, 3]);
        // A single one that is named is reached by its name.
        assert_eq!(choice(&brokers[1..]), [2, 3]);
        assert_eq!(choice(&brokers[1..3]), [2]);
    }

    #[test]
    fn brokers_are_taken_in_turn() {
        let mut turn = Turn::new(1);
        let mut take = |choice: &[&u8]| turn.take(choice);
        assert_eq!(take(&[]), None);
        assert_eq!(take(&[&1, &2, &3]), Some(2));
        assert_eq!(take(&[&1, &2, &3]), Some(3));
        // The order in which the client has them means nothing.
        assert_eq!(take(&[&3, &2, &1]), Some(1));
        assert_eq!(take(&[&3, &1, &2]), Some(2));
        assert_eq!(take(&[&2, &1]), Some(1));
        assert_eq!(take(&[&2, &1, &4]), Some(4));
        assert_eq!(take(&[&2, &1, &4]), Some(2));
    }
}
