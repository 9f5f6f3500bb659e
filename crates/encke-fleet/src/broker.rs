//! The stream of JetStream that has the order of one log: found or created, and compared with what a node has applied.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamError, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, PeerInfo, StorageType, Stream};
use async_nats::jetstream::{self, ErrorCode};
use encke_stream::{Chain, Tip, message_hash};

use crate::connect::RECONNECT_EVERY;
use crate::error::FleetError;
use crate::loss_watch::LossWatch;
use crate::settings::{FleetName, FleetSettings, Replicas};

/// The name of the stream of a log's order.
pub(crate) fn stream_name(fleet: &FleetName, log: usize) -> String {
    format!("{fleet}_log_{log}")
}

/// The stream of a log's order.
#[derive(Clone)]
pub(crate) struct OrderStream {
    pub(crate) stream: Stream<()>,
    pub(crate) name: String,
    pub(crate) subject: String,
    /// When it was created, in nanoseconds since 1970. Another time means another stream of the name.
    pub(crate) created_ns: i64,
    /// It was made anew to continue behind what this node has applied.
    pub(crate) begins_behind_tip: bool,
}

/// Finds the stream of a log, or creates it, and compares it with what the node has applied. While the brokers do not answer, such
/// as between two leaders, it asks again, at most for [`FleetSettings::silence_max`]. A loss must be certain.
///
/// `followers` are the nodes that have applied something of the order of a log: an order that they follow is not begun anew.
pub(crate) async fn open(
    context: &jetstream::Context,
    settings: &FleetSettings,
    place: (usize, usize),
    chain: &Chain,
    followers: impl AsyncFn(usize) -> Result<Vec<String>, FleetError>,
) -> Result<OrderStream, FleetError> {
    let until = Instant::now() + settings.silence_max;
    let mut loss = LossWatch::default();
    loop {
        let error = match try_open(context, settings, place, chain, &followers).await {
            Err(error @ FleetError::NoAnswer { .. }) if Instant::now() < until => {
                loss.is_not_said();
                error
            }
            Err(error @ FleetError::Lost { .. }) if !loss.is_said(Instant::now()) => error,
            opened => return opened,
        };
        tracing::warn!(%error, "the order is not there yet");
        tokio::time::sleep(RECONNECT_EVERY).await;
    }
}

async fn try_open(
    context: &jetstream::Context,
    settings: &FleetSettings,
    (log, logs): (usize, usize),
    chain: &Chain,
    followers: &impl AsyncFn(usize) -> Result<Vec<String>, FleetError>,
) -> Result<OrderStream, FleetError> {
    let name = stream_name(&settings.name, log);
    let subject = subject(&settings.name, log);
    let failed = |reason: String| FleetError::Stream {
        log,
        stream: name.clone(),
        reason,
    };
    let no_answer = |reason: String| FleetError::NoAnswer {
        log,
        stream: name.clone(),
        reason,
    };
    let kept = Kept {
        replicas: settings.replicas,
        keep: settings.keep,
        segment_bytes: Some(settings.segment_bytes),
    };
    let config = config(&settings.name, (log, logs), kept);
    let found = match context.get_stream(&name).await {
        Ok(stream) => stream,
        Err(error) if says_missing(&error) => {
            if chain.tip.position > 0 {
                return Err(FleetError::Lost {
                    log,
                    last: 0,
                    applied: chain.tip.position,
                });
            }
            let nodes = followers(log).await?;
            if !nodes.is_empty() {
                return Err(FleetError::Orphaned { log, nodes });
            }
            let created = context.get_or_create_stream(config).await;
            created.map_err(|error| match error.kind() {
                CreateStreamErrorKind::TimedOut => no_answer(error.to_string()),
                _ => failed(creation(&error.to_string(), ONE_REPLICA)),
            })?
        }
        Err(error) => match error.kind() {
            GetStreamErrorKind::JetStream(ref why)
                if why.error_code() == ErrorCode::JETSTREAM_NOT_ENABLED
                    || why.error_code() == ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT =>
            {
                return Err(FleetError::NoJetStream {
                    brokers: settings.access.brokers.to_string(),
                });
            }
            _ => return Err(no_answer(error.to_string())),
        },
    };
    let info = found.get_info().await;
    let info = info.map_err(|error| no_answer(error.to_string()))?;
    if !has_quorum(&info) {
        return Err(no_answer(NO_QUORUM.to_owned()));
    }
    let has = info.config.metadata.get(META_LOGS);
    if let Some(has) = has.filter(|has| **has != logs.to_string()) {
        return Err(FleetError::Logs {
            has: has.clone(),
            asked: logs,
        });
    }
    let asked = settings.segment_bytes;
    if let Some(has) = segment_bytes(&info).filter(|has| *has != asked) {
        return Err(FleetError::Segment { has, asked });
    }
    if info.config.subjects != [subject.clone()] {
        let subjects = &info.config.subjects;
        return Err(failed(format!(
            "it has the subjects {subjects:?}, not {subject:?}"
        )));
    }
    let stream = context.get_stream_no_info(&name).await;
    let mut order = OrderStream {
        begins_behind_tip: false,
        stream: stream.map_err(|error| failed(error.to_string()))?,
        created_ns: created_ns(&info),
        name: name.clone(),
        subject,
    };
    compare(&mut order, &info, log, chain).await?;
    Ok(order)
}

/// How the brokers keep an order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) replicas: Replicas,
    pub(crate) keep: Duration,
    /// The size of a segment at all nodes. None: it is not known, and not compared.
    pub(crate) segment_bytes: Option<u64>,
}

/// The subject of the messages of a log's order.
fn subject(fleet: &FleetName, log: usize) -> String {
    format!("{fleet}.log.{log}")
}

/// The stream of a new order.
pub(crate) fn config(fleet: &FleetName, (log, logs): (usize, usize), kept: Kept) -> Config {
    let mut metadata = HashMap::from([(META_LOGS.into(), logs.to_string())]);
    let segment = kept.segment_bytes.map(|bytes| bytes.to_string());
    metadata.extend(segment.map(|bytes| (META_SEGMENT.to_owned(), bytes)));
    Config {
        name: stream_name(fleet, log),
        subjects: vec![subject(fleet, log)],
        description: Some("The order of an Encke fleet".into()),
        storage: StorageType::File,
        num_replicas: kept.replicas.0,
        discard: DiscardPolicy::Old,
        max_age: kept.keep,
        duplicate_window: DUPLICATES_WITHIN.min(kept.keep),
        deny_delete: true,
        deny_purge: true,
        metadata,
        ..Config::default()
    }
}

/// The size of a segment at all nodes of an order.
pub(crate) fn segment_bytes(info: &Info) -> Option<u64> {
    info.config.metadata.get(META_SEGMENT)?.parse().ok()
}

/// Makes the stream of an order one that continues behind `tip`.
pub(crate) fn continue_behind(tip: Tip, config: &mut Config) {
    config.first_sequence = Some(tip.position + 1);
    let metadata = &mut config.metadata;
    metadata.insert(META_CONTINUES.into(), tip_text(tip));
}

/// Whether a stream was made to continue behind this tip.
pub(crate) fn continues_behind(info: &Info, tip: Tip) -> bool {
    let continues = info.config.metadata.get(META_CONTINUES);
    continues.is_some_and(|text| *text == tip_text(tip))
}

/// The position behind which a stream was made to continue, if it was.
pub(crate) fn continued_position(info: &Info) -> Option<u64> {
    let text = info.config.metadata.get(META_CONTINUES)?;
    text.split_once(':')?.0.parse().ok()
}

fn tip_text(tip: Tip) -> String {
    format!("{}:{:032x}:{:016x}", tip.position, tip.hash, tip.message)
}

/// Compares the order with what the node has applied.
async fn compare(
    order: &mut OrderStream,
    info: &Info,
    log: usize,
    chain: &Chain,
) -> Result<(), FleetError> {
    let applied = chain.tip.position;
    let state = &info.state;
    if state.last_sequence < applied {
        let last = state.last_sequence;
        return Err(FleetError::Lost { log, last, applied });
    }
    let lost = lost_positions(&order.stream, info, log).await?;
    let first = first_whole(info, &lost);
    if applied > 0 && continued_position(info) == Some(applied) {
        // A repair has made the order anew behind what this node has, or behind another history.
        order.begins_behind_tip = continues_behind(info, chain.tip);
        return match order.begins_behind_tip {
            true if first > applied + 1 => Err(FleetError::Behind {
                log,
                first,
                applied,
            }),
            true => Ok(()),
            false => Err(FleetError::OtherHistory { log, applied }),
        };
    }
    // Another history is refused before a copy would replace it.
    if applied > 0 && applied >= state.first_sequence && !lost.contains(&applied) {
        let message = order.stream.get_raw_message(applied).await;
        let message = message.map_err(|error| FleetError::NoAnswer {
            log,
            stream: order.name.clone(),
            reason: format!("message {applied} cannot be read: {error}"),
        })?;
        if message_hash(&message.payload) != chain.tip.message {
            return Err(FleetError::OtherHistory { log, applied });
        }
    }
    match first > chain.resume + 1 {
        true => Err(FleetError::Behind {
            log,
            first,
            applied,
        }),
        false => Ok(()),
    }
}

/// The positions that the brokers have lost between the first and the last one, such as with a damaged file. The order allows no deletion.
pub(crate) async fn lost_positions(
    stream: &Stream<()>,
    info: &Info,
    log: usize,
) -> Result<Vec<u64>, FleetError> {
    if info.state.deleted_count.unwrap_or(0) == 0 {
        return Ok(Vec::new());
    }
    let detailed = stream.info_builder().with_deleted(true).fetch().await;
    let detailed = detailed.map_err(|error| FleetError::NoAnswer {
        log,
        stream: info.config.name.clone(),
        reason: format!("which messages are lost cannot be read: {error}"),
    })?;
    Ok(detailed.info.state.deleted.unwrap_or_default())
}

/// The position from which on the brokers lack none.
pub(crate) fn first_whole(info: &Info, lost: &[u64]) -> u64 {
    let first = info.state.first_sequence;
    lost.last().map_or(first, |last| first.max(last + 1))
}

/// Whether an answer is from a leader that is in touch with a majority of the brokers that keep the order. A leader that is cut off
/// from them believes for up to ten seconds that it leads, and while an order has no leader, any broker answers with what it has.
pub(crate) fn has_quorum(info: &Info) -> bool {
    let Some(cluster) = &info.cluster else {
        // A broker alone.
        return true;
    };
    if info.config.num_replicas <= 1 {
        return true;
    }
    let leads = cluster.leader.as_ref().is_some_and(|name| !name.is_empty());
    // A broker that the leader has never heard from is not current, and has a time of zero.
    let in_touch = |replica: &&PeerInfo| {
        replica.active < FOLLOWS_WITHIN && (replica.current || !replica.active.is_zero())
    };
    let in_touch = 1 + cluster.replicas.iter().filter(in_touch).count();
    // While the order moves to other brokers, more of them keep it.
    let all = info.config.num_replicas.max(1 + cluster.replicas.len());
    leads && 2 * in_touch > all
}

/// What an answer without a quorum means.
pub(crate) const NO_QUORUM: &str =
    "no leader of the order is in touch with a majority of the brokers";

/// When a stream was created, in nanoseconds since 1970.
pub(crate) fn created_ns(info: &Info) -> i64 {
    // It has room up to the year 2262.
    info.created.unix_timestamp_nanos() as i64
}

/// What to do when a stream cannot be created. `alone` is the advice for a single broker.
pub(crate) fn creation(error: &str, alone: &str) -> String {
    let few = ["replicas > 1", "insufficient", "no suitable peers"];
    match few.iter().any(|why| error.contains(why)) {
        true => {
            format!("{error}: the brokers are fewer than the replicas; {alone} for a single broker")
        }
        false => error.to_owned(),
    }
}

/// What a single broker needs, in the settings of a node.
pub(crate) const ONE_REPLICA: &str = "set fleet-replicas in [tuning] to 1";

/// Whether the brokers say that they have no stream of this name.
pub(crate) async fn is_missing(context: &jetstream::Context, name: &str) -> bool {
    let found = context.get_stream(name).await;
    found.is_err_and(|error| says_missing(&error))
}

/// Whether an error says so.
pub(crate) fn says_missing(error: &GetStreamError) -> bool {
    matches!(
        error.kind(),
        GetStreamErrorKind::JetStream(why) if why.error_code() == ErrorCode::STREAM_NOT_FOUND
    )
}

/// Where a stream that a repair has made says behind which tip it continues.
const META_CONTINUES: &str = "encke-continues";

/// Where the number of logs is in the description of a stream.
const META_LOGS: &str = "encke-logs";

/// Where the size of a segment is.
const META_SEGMENT: &str = "encke-segment";

/// Within this time the brokers find a batch that was sent twice. The machine finds it later, too.
const DUPLICATES_WITHIN: Duration = Duration::from_secs(120);

/// A broker that follows an order answers its leader at least every two seconds. After four seconds without one, brokers may elect another leader.
const FOLLOWS_WITHIN: Duration = Duration::from_secs(4);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What the leader of an order without messages says, with the time since it heard from each of the others, and whether they are current.
    pub(crate) fn info(replicas: usize, others: &[(bool, u64)]) -> Info {
        let others = others.iter().map(|(current, active_ms)| {
            serde_json::json!({
                "name": "b", "current": current, "active": active_ms * 1_000_000,
            })
        });
        let config = Config {
            num_replicas: replicas,
            ..Config::default()
        };
        let info = serde_json::json!({
            "config": config,
            "created": "2026-01-01T00:00:00Z",
            "state": {
                "messages": 0, "bytes": 0, "first_seq": 1, "last_seq": 0, "consumer_count": 0,
                "first_ts": "0001-01-01T00:00:00Z", "last_ts": "0001-01-01T00:00:00Z",
            },
            "cluster": {"leader": "a", "replicas": others.collect::<Vec<_>>()},
        });
        serde_json::from_value(info).unwrap()
    }

    #[test]
    fn an_answer_counts_with_most_of_the_brokers() {
        assert!(has_quorum(&info(1, &[])));
        assert!(has_quorum(&info(3, &[(true, 1_900), (true, 9_000)])));
        assert!(!has_quorum(&info(3, &[(true, 4_000), (true, 9_000)])));
        assert!(!has_quorum(&info(3, &[(false, 0), (false, 0)])));
        assert!(!has_quorum(&info(3, &[])));
        // One that is behind is in touch.
        assert!(has_quorum(&info(3, &[(false, 10), (true, 9_000)])));
        let moving = [(true, 10), (true, 9_000), (true, 9_000)];
        assert!(!has_quorum(&info(3, &moving)));
        let two = [(true, 0), (true, 10), (true, 9_000), (false, 0)];
        assert!(has_quorum(&info(5, &two)));
        assert!(!has_quorum(&info(5, &two[1..])));
        // Any broker answers while there is no leader.
        let mut no_leader = info(3, &[(true, 10), (true, 10), (true, 10)]);
        no_leader.cluster.as_mut().unwrap().leader = None;
        assert!(!has_quorum(&no_leader));
        no_leader.cluster.as_mut().unwrap().leader = Some(String::new());
        assert!(!has_quorum(&no_leader));
        no_leader.cluster = None;
        assert!(has_quorum(&no_leader));
    }
}
