//! The order without nodes: what the brokers alone carry with the traffic of a fleet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{DeliverPolicy, push::OrderedConfig};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::stream::{Config, StorageType};
use async_nats::{ServerAddr, jetstream};
use futures_util::StreamExt;
use serde::Serialize;

use super::nodes::{FleetNodes, NODES};
use crate::BenchError;
use crate::experiment::lab::Lab;
use crate::load::{Latencies, Percentiles};

/// One round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OrderRound {
    pub(super) message_bytes: usize,
    pub(super) messages_per_second: f64,
    /// Until a message was stored on a majority.
    pub(super) stored: Percentiles,
    /// Processor time of all brokers for a message, in microseconds.
    pub(super) brokers_us: f64,
}

/// Publishes as three nodes do: each has a message in flight, and receives the messages of all.
pub(super) fn measure(
    lab: &Lab<'_>,
    fleet: &FleetNodes,
    message_bytes: usize,
) -> Result<OrderRound, BenchError> {
    let failed = |reason: String| BenchError::Broker {
        program: lab.broker.clone(),
        reason,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(BenchError::system("start a thread"))?;
    let urls = fleet.broker_urls();
    let duration = lab.duration(DURATION);
    runtime.block_on(async {
        let made = make(&urls).await.map_err(failed)?;
        let ends = AtomicBool::new(false);
        let before = fleet.time()?;
        let begun = Instant::now();
        let all = futures_util::future::try_join_all(
            (0..NODES).map(|number| publish(&urls, (number, message_bytes), duration, &ends)),
        );
        let publishing = all.await.map_err(failed);
        let took = begun.elapsed();
        let after = fleet.time()?;
        // Also after an error.
        made.delete_stream(STREAM)
            .await
            .map_err(|error| failed(error.to_string()))?;
        let mut stored = Latencies::new();
        for one in publishing? {
            one.recorded()
                .for_each(|(ns, count)| stored.record_many(ns, count));
        }
        let count = stored.count().max(1) as f64;
        let stored = stored.percentiles();
        Ok(OrderRound {
            message_bytes,
            messages_per_second: count / took.as_secs_f64(),
            stored: stored.ok_or_else(|| failed("has stored nothing".into()))?,
            brokers_us: (after.brokers_ns - before.brokers_ns) as f64 / 1e3 / count,
        })
    })
}

async fn connect(urls: &str) -> Result<async_nats::Client, String> {
    let addresses: Result<Vec<ServerAddr>, _> = urls.split(',').map(str::parse).collect();
    let addresses = addresses.map_err(|error| error.to_string())?;
    let client = async_nats::connect(addresses).await;
    client.map_err(|error| error.to_string())
}

async fn make(urls: &str) -> Result<jetstream::Context, String> {
    let context = jetstream::new(connect(urls).await?);
    let config = Config {
        name: STREAM.into(),
        subjects: vec![STREAM.into()],
        storage: StorageType::File,
        num_replicas: 3,
        deny_delete: true,
        ..Config::default()
    };
    let made = context.create_stream(config).await;
    made.map_err(|error| error.to_string())?;
    Ok(context)
}

/// Sends messages one after the other, and receives those of all meanwhile.
async fn publish(
    urls: &str,
    (number, bytes): (usize, usize),
    duration: Duration,
    ends: &AtomicBool,
) -> Result<Latencies, String> {
    let client = connect(urls).await?;
    let context = jetstream::new(client.clone());
    let stream = context.get_stream_no_info(STREAM).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let config = OrderedConfig {
        deliver_subject: client.new_inbox(),
        deliver_policy: DeliverPolicy::All,
        ..OrderedConfig::default()
    };
    let consumer = stream.create_consumer(config).await;
    let consumer = consumer.map_err(|error| error.to_string())?;
    let messages = consumer.messages().await;
    let mut messages = messages.map_err(|error| error.to_string())?;
    let receiving = tokio::spawn(async move { while let Some(Ok(_)) = messages.next().await {} });
    let mut stored = Latencies::new();
    let begun = Instant::now();
    let body = vec![b'x'; bytes];
    while begun.elapsed() < duration && !ends.load(Ordering::Relaxed) {
        let message = PublishMessage::build()
            .payload(body.clone().into())
            .message_id(format!("{number}:{}", stored.count()))
            .expected_stream(STREAM);
        let sent = Instant::now();
        let confirmed = async {
            let sent = context.send_publish(STREAM, message).await;
            sent.map_err(|error| error.to_string())?
                .await
                .map_err(|error| error.to_string())
        };
        if let Err(error) = confirmed.await {
            ends.store(true, Ordering::Relaxed);
            return Err(error);
        }
        stored.record(sent.elapsed().as_nanos() as u64);
    }
    receiving.abort();
    Ok(stored)
}

const STREAM: &str = "bench_order";

const DURATION: Duration = Duration::from_secs(4);
