//! Checks of the brokers of a fleet.

use encke_fleet::{
    BrokerAnswer, BrokerFinding, BrokerFindings, BrokerVersion, FleetSettings, JetStreamFinding,
    OrderFinding,
};

use super::check::{Check, Line, Verdict, bytes, millis};

/// The checks of what the brokers have said. `logs`: of this node.
pub(super) fn checks(
    findings: &BrokerFindings,
    settings: &FleetSettings,
    logs: usize,
) -> Vec<Check> {
    let answering = findings.brokers.iter();
    let some_answer = answering.clone().any(|broker| broker.answer.is_ok());
    let mut checks = Vec::new();
    for broker in answering {
        checks.push(answers(broker, some_answer));
        if let Ok(answer) = &broker.answer {
            checks.extend(of_broker(broker, answer));
        }
    }
    if let Some(found) = &findings.jetstream {
        checks.push(jetstream(found));
        if found.storage_bytes_max.is_ok() {
            checks.push(syncs(found));
            checks.push(number_of_logs(found, logs));
            let orders = found.orders.iter().flatten().enumerate();
            checks.extend(orders.map(|(log, order)| self::order(log, order, settings)));
            checks.push(stored(found));
        }
    }
    checks
}

fn check(name: String, value: String, need: &str, verdict: Verdict, why: &'static str) -> Check {
    Check {
        name: name.into(),
        value,
        need: need.to_owned(),
        verdict,
        why,
        set: Vec::new(),
    }
}

fn answers(broker: &BrokerFinding, some_answer: bool) -> Check {
    let (value, verdict) = match &broker.answer {
        Ok(answer) => (
            answer.round_trip.map_or("connects".to_owned(), |time| {
                format!("answers in {}", millis(time))
            }),
            Verdict::Fits,
        ),
        Err(reason) if some_answer => (reason.clone(), Verdict::Advice),
        Err(reason) => (reason.clone(), Verdict::Fails),
    };
    check(
        format!("broker {}", broker.address),
        value,
        "answers",
        verdict,
        "a node uses one of the brokers that --fleet names, and appends wait for a majority of them",
    )
}

fn of_broker(broker: &BrokerFinding, answer: &BrokerAnswer) -> [Check; 3] {
    let name = |what: &str| format!("broker {}, {what}", broker.address);
    let version = check(
        name("version"),
        format!("nats-server {}", answer.version),
        BrokerVersion::NEEDED,
        match BrokerVersion::of(&answer.version) {
            BrokerVersion::Suits => Verdict::Fits,
            BrokerVersion::Unsafe => Verdict::Advice,
            BrokerVersion::TooOld => Verdict::Fails,
            BrokerVersion::Unknown => Verdict::Unknown,
        },
        BrokerVersion::WHY,
    );
    let largest = answer.message_bytes_max as u64;
    let message = check(
        name("largest message"),
        bytes(largest),
        &bytes(MESSAGE_BYTES),
        match largest >= MESSAGE_BYTES {
            true => Verdict::Fits,
            false => Verdict::Advice,
        },
        "larger batches travel in parts, one after the other (max_payload of the broker)",
    );
    let ahead = answer.clock_ahead_ms;
    let clock = check(
        name("clock"),
        ahead.map_or("unknown".to_owned(), |ahead| match ahead {
            0.. => format!("{ahead} ms ahead of this machine"),
            _ => format!("{} ms behind this machine", ahead.unsigned_abs()),
        }),
        &format!("within {CLOCK_MS} ms"),
        match ahead {
            None => Verdict::Unknown,
            Some(ahead) if ahead.unsigned_abs() <= CLOCK_MS => Verdict::Fits,
            Some(_) => Verdict::Advice,
        },
        "the brokers' time ends lifetimes and retention, the nodes' time deadlines of jobs: keep both by NTP",
    );
    [version, message, clock]
}

fn jetstream(found: &JetStreamFinding) -> Check {
    let (value, verdict) = match &found.storage_bytes_max {
        Ok(None) => ("enabled".to_owned(), Verdict::Fits),
        Ok(Some(0)) => (
            "these credentials may store nothing".to_owned(),
            Verdict::Fails,
        ),
        Ok(Some(max)) => (format!("enabled, {} at most", bytes(*max)), Verdict::Fits),
        Err(reason) => (reason.clone(), Verdict::Fails),
    };
    check(
        "brokers, JetStream".to_owned(),
        value,
        "enabled for these credentials",
        verdict,
        "the order is a stream of JetStream: start nats-server with -js or a `jetstream` block",
    )
}

fn syncs(found: &JetStreamFinding) -> Check {
    let late = found.syncs.iter().filter(|(_, always)| !always);
    let late: Vec<&str> = late.map(|(broker, _)| broker.as_str()).collect();
    let (value, verdict) = match (found.syncs.len(), late.len()) {
        (0, _) => (
            "the brokers do not tell these credentials".to_owned(),
            Verdict::Unknown,
        ),
        (brokers, 0) => (
            format!("always, at {}", self::brokers(&brokers.to_string())),
            Verdict::Fits,
        ),
        _ => (format!("later, at {}", late.join(", ")), Verdict::Advice),
    };
    let set = match verdict {
        Verdict::Fits => Vec::new(),
        _ => vec![Line {
            file: "the `jetstream` block of each broker",
            line: "sync_interval: always".into(),
        }],
    };
    Check {
        set,
        ..check(
            "brokers, sync of messages".to_owned(),
            value,
            "always",
            verdict,
            "without `sync_interval: always` a broker syncs every two minutes, and a power cut of a majority loses what was \
             acknowledged; `curl 'http://BROKER:8222/jsz?config=1'` shows `sync_always` where monitoring is on",
        )
    }
}

fn number_of_logs(found: &JetStreamFinding, logs: usize) -> Check {
    let (value, verdict) = match found.orders.as_ref().map(Vec::len) {
        Ok(0) => (
            "none yet: the first node makes them".to_owned(),
            Verdict::Fits,
        ),
        Ok(has) if has == logs => (has.to_string(), Verdict::Fits),
        Ok(has) => (has.to_string(), Verdict::Fails),
        Err(reason) => (reason.clone(), Verdict::Fails),
    };
    check(
        "fleet, logs".to_owned(),
        value,
        &logs.to_string(),
        verdict,
        "all nodes of a fleet have the same --logs",
    )
}

fn order(log: usize, order: &OrderFinding, settings: &FleetSettings) -> Check {
    let mut faults = Vec::new();
    if !order.offline.is_empty() {
        faults.push(format!("{} do not follow", order.offline.join(", ")));
    }
    if order.lost > 0 {
        faults.push(format!("{} messages are lost", order.lost));
    }
    let asked = settings.replicas.to_string();
    let mut value = format!("on {}", brokers(&order.replicas.to_string()));
    for fault in &faults {
        value = format!("{value}; {fault}");
    }
    let differs = order.replicas.to_string() != asked;
    check(
        format!("fleet, order of log {log}"),
        value,
        &format!("on {}, whole", brokers(&asked)),
        match faults.is_empty() && !differs {
            true => Verdict::Fits,
            false => Verdict::Advice,
        },
        "with fewer brokers, the next fault stops the fleet; fleet-replicas counts only when the first node of a fleet starts",
    )
}

fn brokers(count: &str) -> String {
    match count {
        "1" => "1 broker".to_owned(),
        _ => format!("{count} brokers"),
    }
}

fn stored(found: &JetStreamFinding) -> Check {
    let (value, verdict) = match &found.stored {
        Ok(times) => (
            format!(
                "{}, {} at most",
                millis(times.median),
                millis(times.slowest)
            ),
            match times.median.as_millis() >= STORED_MS {
                true => Verdict::Advice,
                false => Verdict::Fits,
            },
        ),
        Err(reason) => (reason.clone(), Verdict::Fails),
    };
    check(
        "brokers, time to store a message".to_owned(),
        value,
        &format!("under {STORED_MS} ms"),
        verdict,
        "each batch of appends waits this long, and for a sync of the node",
    )
}

/// The default of nats-server.
const MESSAGE_BYTES: u64 = 1 << 20;

const CLOCK_MS: u64 = 1_000;

const STORED_MS: u128 = 20;
