//! The settings of a node.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use async_nats::ServerAddr;
use encke_stream::NODE_NAME_BYTES_MAX;
use percent_encoding::percent_decode_str;

use crate::node_retention::NodeRetention;

/// How a node takes part in a fleet.
#[derive(Clone, Debug)]
pub struct FleetSettings {
    /// How the brokers are reached.
    pub access: BrokerAccess,
    /// The name of the fleet: several can use the same brokers.
    pub name: FleetName,
    /// The name of this node, which no other node of the fleet has.
    pub node: FleetName,
    /// On how many brokers the order is stored.
    pub replicas: Replicas,
    /// How long a batch is sent again while no broker confirms it.
    pub retry: Duration,
    /// After this long without an answer of a broker, or this far behind the order, a node is not ready.
    pub silence_max: Duration,
    /// How long the brokers keep the order: a node that is away for less continues by itself.
    pub keep: Duration,
    /// The size of a segment of the nodes' logs, in bytes: what fits into one at a node must fit at all of them.
    pub segment_bytes: u64,
    /// The retention of the nodes' logs.
    pub retention: NodeRetention,
}

/// How brokers are reached.
#[derive(Clone, Debug)]
pub struct BrokerAccess {
    /// The brokers. A node uses one of them at a time, and learns of others of their cluster by itself.
    pub brokers: BrokerUrls,
    /// The file of the credentials for the brokers, as their tools write it.
    pub credentials: Option<PathBuf>,
    /// The file of the certificate authority of the brokers.
    pub ca: Option<PathBuf>,
}

/// The addresses of brokers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrls(pub(crate) Vec<ServerAddr>);

/// The text is no list of brokers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBrokers {
    /// One is no address.
    #[error(
        "{0:?} is no address of a broker: give one or more of nats://HOST:PORT or tls://HOST:PORT, with commas between, such \
         as nats://10.0.0.1:4222,nats://10.0.0.2:4222"
    )]
    Address(String),
    /// Two have different users.
    #[error(
        "the addresses of brokers name different users: a node has one, by the addresses or by the file of its credentials"
    )]
    Users,
}

/// How a node shows the brokers who it is, if their addresses say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BrokerLogin {
    /// `nats://USER:PASSWORD@HOST`.
    User(String, String),
    /// `nats://TOKEN@HOST`.
    Token(String),
}

impl BrokerUrls {
    /// What the addresses say before their hosts; not what comes with addresses that the brokers name.
    pub(crate) fn login(&self) -> Option<BrokerLogin> {
        self.0.iter().find_map(login)
    }
}

fn login(address: &ServerAddr) -> Option<BrokerLogin> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = decoded(address.username()?);
    Some(match address.password() {
        Some(password) => BrokerLogin::User(user, decoded(password)),
        None => BrokerLogin::Token(user),
    })
}

impl FromStr for BrokerUrls {
    type Err = BadBrokers;

    fn from_str(text: &str) -> Result<Self, BadBrokers> {
        let parse = |one: &str| {
            let bad = || BadBrokers::Address(without_userinfo(one));
            let known = ["nats://", "tls://"];
            if !known.iter().any(|scheme| one.starts_with(scheme)) {
                return Err(bad());
            }
            one.parse::<ServerAddr>().map_err(|_| bad())
        };
        let urls: Result<Vec<_>, _> = text.split(',').map(|one| parse(one.trim())).collect();
        let urls = BrokerUrls(urls?);
        let first = urls.login();
        let logins = urls.0.iter().filter_map(login);
        match logins
            .into_iter()
            .all(|login| Some(&login) == first.as_ref())
        {
            true => Ok(urls),
            false => Err(BadBrokers::Users),
        }
    }
}

/// Without passwords.
impl fmt::Display for BrokerUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, url) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let scheme = url.scheme();
            write!(f, "{comma}{scheme}://{}:{}", url.host(), url.port())?;
        }
        Ok(())
    }
}

/// A text with URLs, without the names and passwords before their hosts: for messages, which are kept in logs.
pub fn without_userinfo(text: &str) -> String {
    let has_user = |one: &str| one.contains('@');
    let is_url = |one: &str| {
        one.split_once("://")
            .is_some_and(|(_, rest)| has_user(rest))
    };
    // A comma in a password, or no scheme: what belongs to which is not known.
    if !text.split(',').filter(|one| has_user(one)).all(is_url) {
        let hosts = text.rsplit_once('@').map_or(text, |(_, hosts)| hosts);
        return format!("-@{hosts}");
    }
    let hide = |one: &str| {
        let Some((scheme, rest)) = one.split_once("://") else {
            return one.to_owned();
        };
        match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://-@{host}"),
            None => one.to_owned(),
        }
    };
    text.split(',').map(hide).collect::<Vec<_>>().join(",")
}

/// The name of a fleet or of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetName(Box<str>);

/// The text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no name: give 1 to {NODE_NAME_BYTES_MAX} letters, digits, - and _, such as node-1"
)]
pub struct BadFleetName {
    text: String,
}

impl FromStr for FleetName {
    type Err = BadFleetName;

    fn from_str(text: &str) -> Result<Self, BadFleetName> {
        let fits = (1..=NODE_NAME_BYTES_MAX).contains(&text.len());
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if fits && text.bytes().all(allowed) {
            return Ok(FleetName(text.into()));
        }
        Err(BadFleetName { text: text.into() })
    }
}

impl fmt::Display for FleetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fleet of those who name none.
impl Default for FleetName {
    fn default() -> Self {
        FleetName("encke".into())
    }
}

impl FleetName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// On how many brokers the order is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas(pub(crate) usize);

/// The text is no number of replicas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no number of replicas: give 1, 3 or 5")]
pub struct BadReplicas {
    text: String,
}

impl FromStr for Replicas {
    type Err = BadReplicas;

    fn from_str(text: &str) -> Result<Self, BadReplicas> {
        match text {
            "1" => Ok(Replicas(1)),
            "3" => Ok(Replicas(3)),
            "5" => Ok(Replicas(5)),
            _ => Err(BadReplicas { text: text.into() }),
        }
    }
}

impl Default for Replicas {
    fn default() -> Self {
        Replicas(3)
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_are_read_and_shown_without_passwords() {
        let brokers: BrokerUrls = "nats://me:secret@10.0.0.1:4222, tls://b.example"
            .parse()
            .unwrap();
        assert_eq!(
            brokers.to_string(),
            "nats://10.0.0.1:4222,tls://b.example:4222"
        );
        for bad in [
            "",
            "10.0.0.1",
            "http://10.0.0.1:4222",
            "nats://a:4222,,nats://b:4222",
        ] {
            let error = bad.parse::<BrokerUrls>().unwrap_err();
            assert!(error.to_string().contains("such as nats://"), "{bad}");
        }
    }

    #[test]
    fn users_are_read_from_addresses() {
        let login = |text: &str| text.parse::<BrokerUrls>().map(|brokers| brokers.login());
        let user = Some(BrokerLogin::User("me".into(), "p@ss".into()));
        assert_eq!(login("nats://me:p%40ss@a:1,nats://b:1"), Ok(user.clone()));
        assert_eq!(
            login("nats://b:1,tls://me:p%40ss@a:1,nats://me:p%40ss@c:1"),
            Ok(user)
        );
        let token = Some(BrokerLogin::Token("secret".into()));
        assert_eq!(login("nats://secret@a:1"), Ok(token));
        assert_eq!(login("nats://a:1"), Ok(None));
        assert_eq!(
            login("nats://a:x@a:1,nats://b:x@b:1"),
            Err(BadBrokers::Users)
        );
    }

    #[test]
    fn a_wrong_address_is_shown_without_its_password() {
        let bad = "nats://me:secret@10.0.0.1:port".parse::<BrokerUrls>();
        let error = bad.unwrap_err().to_string();
        assert!(error.contains("nats://-@10.0.0.1:port"), "{error}");
        let list = "nats://a:1, x://b:p@ss@c:1,d";
        assert_eq!(without_userinfo(list), "nats://a:1, x://-@c:1,d");
        for list in [
            "nats://me:secret,x@a:1",
            "me:secret@a:1",
            "nats:/me:secret@a:1",
            "nats://b:1,me:secret@a:1",
        ] {
            assert_eq!(without_userinfo(list), "-@a:1", "{list}");
        }
    }

    #[test]
    fn names_and_replicas_are_checked() {
        assert_eq!(
            "node-1_a".parse::<FleetName>().unwrap().as_str(),
            "node-1_a"
        );
        for bad in ["", "a.b", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<FleetName>().is_err(), "{bad}");
        }
        assert_eq!("3".parse::<Replicas>().unwrap().to_string(), "3");
        assert!("2".parse::<Replicas>().is_err());
    }
}
