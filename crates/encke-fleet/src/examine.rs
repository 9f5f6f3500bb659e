//! What `encke doctor` asks the brokers before a node starts, or while a fleet runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::{Client, ServerAddr};
use encke_clock::WallTime;
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;

use crate::broker;
use crate::connect;
use crate::error::FleetError;
use crate::report;
use crate::settings::{BrokerAccess, BrokerUrls, FleetSettings};

/// What the brokers of a fleet are like.
#[derive(Clone, Debug)]
pub struct BrokerFindings {
    /// Each of the brokers that were named.
    pub brokers: Vec<BrokerFinding>,
    /// What they say of JetStream. None: no broker answers.
    pub jetstream: Option<JetStreamFinding>,
}

/// A broker.
#[derive(Clone, Debug)]
pub struct BrokerFinding {
    /// Its address, without a password.
    pub address: String,
    /// What it says, or why it does not answer.
    pub answer: Result<BrokerAnswer, String>,
}

/// What a broker says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAnswer {
    /// The version of nats-server.
    pub version: String,
    /// How long an answer takes. None: these credentials may not ask.
    pub round_trip: Option<Duration>,
    /// The largest message that it takes.
    pub message_bytes_max: usize,
    /// How far its clock is ahead of the one here, in milliseconds. None: it does not say.
    pub clock_ahead_ms: Option<i64>,
}

/// What the brokers say of JetStream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JetStreamFinding {
    /// Bytes that these credentials may store. None: as many as there is room for. An error: there is no JetStream for them.
    pub storage_bytes_max: Result<Option<u64>, String>,
    /// Whether each broker syncs every message, as far as they say so.
    pub syncs: Vec<(String, bool)>,
    /// The orders that are there already, by the logs' indices, or why the brokers do not say.
    pub orders: Result<Vec<OrderFinding>, String>,
    /// How long messages took that were stored on as many brokers as the order is, or why none could be stored.
    pub stored: Result<StoreTimes, String>,
}

/// The order of a log that is there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderFinding {
    /// On how many brokers it is stored.
    pub replicas: usize,
    /// Brokers that should have it and do not follow.
    pub offline: Vec<String>,
    /// Messages that are lost between the first and the last one.
    pub lost: u64,
}

/// How long it took until brokers had stored a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreTimes {
    /// The median.
    pub median: Duration,
    /// The longest time.
    pub slowest: Duration,
}

/// Asks the brokers. To measure how long they take to store a message, makes a stream of its own for a moment.
///
/// # Errors
/// The credentials cannot be read, or the machine has no room for a thread.
pub fn examine_brokers(settings: &FleetSettings) -> Result<BrokerFindings, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut brokers = Vec::new();
        let mut answering = None;
        for url in &settings.access.brokers.0 {
            let (finding, client) = examine_one(&settings.access, url).await?;
            brokers.push(finding);
            answering = answering.or(client);
        }
        let jetstream = match answering {
            Some(client) => Some(examine_jetstream(&client, settings).await),
            None => None,
        };
        Ok(BrokerFindings { brokers, jetstream })
    })
}

async fn examine_one(
    access: &BrokerAccess,
    url: &ServerAddr,
) -> Result<(BrokerFinding, Option<Client>), FleetError> {
    let one = BrokerAccess {
        brokers: BrokerUrls(vec![url.clone()]),
        ..access.clone()
    };
    let address = one.brokers.to_string();
    let client = match connect::connect(&one, "encke doctor", Duration::ZERO).await {
        Ok(client) => client,
        Err(FleetError::NoBroker { reason, .. }) => {
            let answer = Err(reason);
            return Ok((BrokerFinding { address, answer }, None));
        }
        Err(error) => return Err(error),
    };
    let info = client.server_info();
    let (round_trip, clock_ahead_ms) = ask_time(&client).await;
    let answer = BrokerAnswer {
        version: info.version,
        round_trip,
        message_bytes_max: info.max_payload,
        clock_ahead_ms,
    };
    let finding = BrokerFinding {
        address,
        answer: Ok(answer),
    };
    Ok((finding, Some(client)))
}

/// How long an answer takes, and how far the clock of the broker is ahead: it says its time with what it knows of this user. None
/// each if these credentials may not ask.
async fn ask_time(client: &Client) -> (Option<Duration>, Option<i64>) {
    let mut round_trips = Vec::new();
    let mut ahead = None;
    for _ in 0..ROUND_TRIPS {
        let (begun, began) = (Instant::now(), SystemTime::now());
        let Ok(answer) = client.request("$SYS.REQ.USER.INFO", "".into()).await else {
            return (None, None);
        };
        let took = begun.elapsed();
        round_trips.push(took);
        ahead = clock_ahead_ms(&answer.payload, began + took / 2);
    }
    (Some(times(round_trips).median), ahead)
}

fn clock_ahead_ms(answer: &[u8], here: SystemTime) -> Option<i64> {
    let here = here.duration_since(UNIX_EPOCH).ok()?.as_millis() as i64;
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let there = WallTime::from_rfc3339(answer["server"]["time"].as_str()?).ok()?;
    Some(there.as_ms() as i64 - here)
}

async fn examine_jetstream(client: &Client, settings: &FleetSettings) -> JetStreamFinding {
    let context = jetstream::new(client.clone());
    let account = context.query_account().await;
    let storage = account.map(|account| {
        let max = account
            .limits
            .max_storage
            .and_then(|max| u64::try_from(max).ok());
        // Credentials may have limits for each number of replicas instead.
        max.filter(|_| account.tiers.is_empty())
    });
    let storage_bytes_max = storage.map_err(|error| error.to_string());
    let mut finding = JetStreamFinding {
        syncs: syncs(client).await,
        orders: Ok(Vec::new()),
        stored: Err("there is no JetStream".into()),
        storage_bytes_max,
    };
    if finding.storage_bytes_max.is_err() {
        return finding;
    }
    let orders = orders(&context, settings).await;
    finding.orders = orders.map_err(|error| error.to_string());
    let first = finding.orders.iter().flatten().next();
    let replicas = first.map_or(settings.replicas.0, |order| order.replicas);
    finding.stored = measure(&context, settings, replicas).await;
    finding
}

async fn orders(
    context: &jetstream::Context,
    settings: &FleetSettings,
) -> Result<Vec<OrderFinding>, FleetError> {
    let mut orders = Vec::new();
    while let Some(info) = report::order(context, &settings.name, orders.len()).await? {
        orders.push(OrderFinding {
            replicas: info.config.num_replicas,
            offline: report::offline(&info),
            lost: info.state.deleted_count.unwrap_or(0),
        });
    }
    Ok(orders)
}

/// What the brokers say of their syncs. They tell only users of their system account, or those to whom it exports this.
async fn syncs(client: &Client) -> Vec<(String, bool)> {
    #[derive(Deserialize)]
    struct Answer {
        server: Server,
        data: Data,
    }
    #[derive(Deserialize)]
    struct Server {
        name: String,
    }
    #[derive(Deserialize)]
    struct Data {
        config: Settings,
    }
    #[derive(Deserialize)]
    struct Settings {
        #[serde(default)]
        sync_always: bool,
    }
    let mut found = Vec::new();
    let inbox = client.new_inbox();
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else {
        return found;
    };
    let question = r#"{"config":true}"#;
    let asked = client.publish_with_reply("$SYS.REQ.SERVER.PING.JSZ", inbox, question.into());
    if asked.await.is_err() {
        return found;
    }
    let until = tokio::time::Instant::now() + ANSWERS_WITHIN;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await {
        match serde_json::from_slice::<Answer>(&answer.payload) {
            Ok(Answer { server, data }) => found.push((server.name, data.config.sync_always)),
            // These credentials may not ask.
            Err(_) if answer.payload.is_empty() => break,
            // A broker without JetStream.
            Err(_) => {}
        }
    }
    found.sort();
    found
}

/// Stores messages in a stream of its own, and deletes it.
async fn measure(
    context: &jetstream::Context,
    settings: &FleetSettings,
    replicas: usize,
) -> Result<StoreTimes, String> {
    // Several may measure at the same time.
    let own = context.client().new_inbox();
    let own = own.rsplit('.').next().unwrap_or_default();
    let name = format!("{}_doctor_{own}", settings.name);
    let subject = format!("{}.doctor.{own}", settings.name);
    let config = Config {
        name: name.clone(),
        subjects: vec![subject.clone()],
        description: Some("Encke measures how long brokers take; may be deleted".into()),
        storage: StorageType::File,
        num_replicas: replicas,
        max_age: MEASURED_WITHIN,
        ..Config::default()
    };
    let measured = async {
        let created = context.create_stream(config).await;
        created.map_err(|error| broker::creation(&error.to_string(), broker::ONE_REPLICA))?;
        store(context, &subject).await
    };
    let measured = match tokio::time::timeout(MEASURED_WITHIN, measured).await {
        Ok(measured) => measured,
        Err(_) => Err("the brokers do not answer in time".into()),
    };
    // Also if it is unknown whether it was made.
    let deleted = context.delete_stream(&name).await;
    match (measured, deleted) {
        (Ok(stored), Ok(_)) => Ok(times(stored)),
        (Ok(_), Err(error)) => Err(format!("the stream {name} is left: {error}")),
        (Err(error), _) => Err(error),
    }
}

async fn store(context: &jetstream::Context, subject: &str) -> Result<Vec<Duration>, String> {
    let mut stored = Vec::new();
    for _ in 0..STORED_MESSAGES {
        let begun = Instant::now();
        let sent = context.publish(subject.to_owned(), vec![b'x'; STORED_BYTES].into());
        let sent = sent.await.map_err(|error| error.to_string())?;
        sent.await.map_err(|error| error.to_string())?;
        stored.push(begun.elapsed());
    }
    Ok(stored)
}

fn times(mut times: Vec<Duration>) -> StoreTimes {
    times.sort_unstable();
    StoreTimes {
        median: times.get(times.len() / 2).copied().unwrap_or_default(),
        slowest: times.last().copied().unwrap_or_default(),
    }
}

const ROUND_TRIPS: usize = 5;

const STORED_MESSAGES: usize = 30;

const STORED_BYTES: usize = 1_024;

const MEASURED_WITHIN: Duration = Duration::from_secs(15);

const ANSWERS_WITHIN: Duration = Duration::from_millis(500);
