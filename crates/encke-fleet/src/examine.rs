//! What `encke doctor` asks the brokers before a node starts, or while a fleet runs.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, ServerAddr};
use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::Value;

use crate::broker::{self, FleetError};
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
    /// How long an answer takes.
    pub round_trip: Duration,
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
    /// The orders that are there already, by the logs' indices.
    pub orders: Vec<OrderFinding>,
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
            Some(client) => Some(examine_jetstream(&client, settings).await?),
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
    let client = match broker::connect(&one, "encke doctor", Duration::ZERO).await {
        Ok(client) => client,
        Err(FleetError::NoBroker { reason, .. }) => {
            let answer = Err(reason);
            return Ok((BrokerFinding { address, answer }, None));
        }
        Err(error) => return Err(error),
    };
    let info = client.server_info();
    let mut round_trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        // A message to nobody is answered at once.
        let _ = client.request("encke.doctor.nobody", "".into()).await;
        round_trips.push(begun.elapsed());
    }
    let round_trip = times(round_trips).median;
    let answer = BrokerAnswer {
        version: info.version,
        round_trip,
        message_bytes_max: info.max_payload,
        clock_ahead_ms: clock_ahead_ms(&client).await,
    };
    let finding = BrokerFinding {
        address,
        answer: Ok(answer),
    };
    Ok((finding, Some(client)))
}

/// How far the clock of a broker is ahead: it says its time with what it knows of this user.
async fn clock_ahead_ms(client: &Client) -> Option<i64> {
    let begun = SystemTime::now();
    let answer = client.request("$SYS.REQ.USER.INFO", "".into()).await.ok()?;
    let middle = begun + begun.elapsed().ok()? / 2;
    let here = middle.duration_since(UNIX_EPOCH).ok()?.as_millis() as i64;
    let answer: Value = serde_json::from_slice(&answer.payload).ok()?;
    let time = answer["server"]["time"].as_str()?;
    let there: jiff::Timestamp = time.parse().ok()?;
    Some(there.as_millisecond() - here)
}

async fn examine_jetstream(
    client: &Client,
    settings: &FleetSettings,
) -> Result<JetStreamFinding, FleetError> {
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
        orders: Vec::new(),
        stored: Err("there is no JetStream".into()),
        storage_bytes_max,
    };
    if finding.storage_bytes_max.is_err() {
        return Ok(finding);
    }
    while let Some(info) = report::order(&context, &settings.name, finding.orders.len()).await? {
        finding.orders.push(OrderFinding {
            replicas: info.config.num_replicas,
            offline: report::offline(&info),
            lost: info.state.deleted_count.unwrap_or(0),
        });
    }
    let replicas = match finding.orders.first() {
        Some(order) => order.replicas,
        None => settings.replicas.0,
    };
    let measured = measure(&context, settings, replicas);
    finding.stored = match tokio::time::timeout(MEASURED_WITHIN, measured).await {
        Ok(measured) => measured,
        Err(_) => Err("the brokers do not answer in time".into()),
    };
    Ok(finding)
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
            // Nobody answers here.
            Err(_) => break,
        }
    }
    found.sort();
    found
}

/// Stores messages in a stream of its own.
async fn measure(
    context: &jetstream::Context,
    settings: &FleetSettings,
    replicas: usize,
) -> Result<StoreTimes, String> {
    let name = format!("{}_doctor", settings.name);
    let subject = format!("{}.doctor", settings.name);
    match context.delete_stream(&name).await {
        Ok(_) => {}
        Err(error) => match error.kind() {
            jetstream::context::DeleteStreamErrorKind::JetStream(ref why)
                if why.error_code() == ErrorCode::STREAM_NOT_FOUND => {}
            _ => return Err(error.to_string()),
        },
    }
    let config = Config {
        name: name.clone(),
        subjects: vec![subject.clone()],
        description: Some("Encke measures how long brokers take; may be deleted".into()),
        storage: StorageType::File,
        num_replicas: replicas,
        max_age: MEASURED_WITHIN,
        ..Config::default()
    };
    let created = context.create_stream(config).await;
    created.map_err(|error| broker::creation(&error.to_string()))?;
    let stored = store(context, &subject).await;
    let deleted = context.delete_stream(&name).await;
    let stored = stored?;
    deleted.map_err(|error| format!("the stream {name} is left: {error}"))?;
    Ok(times(stored))
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
