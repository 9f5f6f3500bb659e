//! What a pool can be told, and the bounds of what it can be told.

use encke_pool::{Capacity, PoolOptions, Size, Strategy};
use serde::{Deserialize, Serialize};

/// What a pool is: fixed when it is made. All are optional in a request but the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// How a job's worker is chosen: `round_robin`, `random`, `hash`, `direct` or `claim`.
    #[serde(rename = "type", with = "strategy_name")]
    pub strategy: Strategy,
    /// Exactly so many slots for workers. Nothing: as many as are needed, up to `size_max`.
    #[serde(default)]
    pub size: Option<u32>,
    /// The most workers of a pool without a fixed size.
    #[serde(default = "size_max")]
    pub size_max: u32,
    /// How long a worker may take before its job goes to another, in milliseconds; it may ask for more.
    #[serde(default = "ack_ms")]
    pub ack_ms: u64,
    /// How often a job is handed out before it goes to the dead letters.
    #[serde(default = "attempts")]
    pub attempts: u16,
    /// Jobs that one worker may have at a time; always 1 in a `claim` pool.
    #[serde(default)]
    pub in_flight: Option<u32>,
    /// What a job may weigh, in bytes.
    #[serde(default = "job_bytes_max")]
    pub job_bytes_max: u32,
    /// Jobs that may wait; more are refused.
    #[serde(default)]
    pub waiting_max: Option<u32>,
    /// Whether what happens to jobs and workers is told in the stream `pool/NAME/events`.
    #[serde(default = "events")]
    pub events: bool,
}

/// Bounds of all pools together, and of what a pool can be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// Pools that there may be.
    pub pools_max: usize,
    /// The most jobs that may wait in one pool, and how many may if the pool does not say.
    pub waiting_max: u32,
    /// The most bytes that a job may weigh, and what one may if the pool does not say otherwise.
    pub job_bytes_max: u32,
    /// Bytes of waiting jobs that are kept in memory beside the log, over all pools; the others
    /// are read when they are handed out.
    pub cache_bytes: usize,
    /// Jobs that are over and remembered, in each pool.
    pub finished_max: usize,
    /// Bytes of their results that are kept, in each pool.
    pub finished_bytes: usize,
    /// The longest time that a request may wait for a job or for a result, in milliseconds.
    pub wait_ms_max: u64,
    /// Bytes of jobs that one worker may have at a time, unless it has one only.
    pub worker_bytes_max: u64,
    /// Records after which a pool's past is written anew as what is left of it.
    pub segment_records: u64,
    /// Bytes at which a record of decisions, or of what is left of the past, goes on in another one.
    pub record_bytes: usize,
    /// Whether the log lets go of records that are old: then no pool can be made, because its jobs
    /// would be among them.
    pub forgets: bool,
}

impl Default for PoolLimits {
    fn default() -> Self {
        PoolLimits {
            pools_max: 1_000,
            waiting_max: 1_000_000,
            job_bytes_max: 1 << 20,
            cache_bytes: 64 << 20,
            finished_max: 10_000,
            finished_bytes: 8 << 20,
            wait_ms_max: 300_000,
            worker_bytes_max: 4 << 20,
            segment_records: 65_536,
            record_bytes: 256 << 10,
            forgets: false,
        }
    }
}

/// A setting that can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, and must be between {least} and {most}")]
pub struct SettingOutOfRange {
    /// Which setting.
    pub name: &'static str,
    /// What it was to be.
    pub value: u64,
    /// The least that it may be.
    pub least: u64,
    /// The most that it may be.
    pub most: u64,
}

impl PoolSettings {
    /// Fills in what was left out and checks what was said.
    ///
    /// # Errors
    /// A setting is out of its bounds.
    pub fn checked(mut self, limits: &PoolLimits) -> Result<Self, SettingOutOfRange> {
        let waiting_max = self.waiting_max.unwrap_or(limits.waiting_max);
        let in_flight = match self.strategy {
            Strategy::Claim => 1,
            _ => self.in_flight.unwrap_or(IN_FLIGHT),
        };
        self.waiting_max = Some(waiting_max);
        self.in_flight = Some(in_flight);
        if self.job_bytes_max == job_bytes_max() {
            self.job_bytes_max = self.job_bytes_max.min(limits.job_bytes_max);
        }
        if let Some(size) = self.size {
            self.size_max = size;
        }
        for (name, value, least, most) in [
            ("size", u64::from(self.size_max), 1, SIZE_MAX),
            ("ack_ms", self.ack_ms, ACK_MS_LEAST, ACK_MS_MAX),
            ("attempts", self.attempts.into(), 1, ATTEMPTS_MAX),
            ("in_flight", in_flight.into(), 1, IN_FLIGHT_MAX),
            (
                "job_bytes_max",
                self.job_bytes_max.into(),
                1,
                limits.job_bytes_max.into(),
            ),
            (
                "waiting_max",
                waiting_max.into(),
                1,
                limits.waiting_max.into(),
            ),
        ] {
            if value < least || value > most {
                return Err(SettingOutOfRange {
                    name,
                    value,
                    least,
                    most,
                });
            }
        }
        Ok(self)
    }

    /// Jobs that one worker may have at a time.
    pub fn in_flight_max(&self) -> u32 {
        self.in_flight.unwrap_or(IN_FLIGHT)
    }

    /// Jobs that may wait.
    pub fn waiting_max(&self) -> usize {
        self.waiting_max.unwrap_or(u32::MAX) as usize
    }

    /// The options of the pool that picks. `worker_bytes_max` bounds the jobs of one worker.
    pub(crate) fn options(&self, worker_bytes_max: u64) -> PoolOptions {
        let size = match self.size {
            Some(size) => Size::Fixed(size as usize),
            None => Size::Growing {
                size_max: self.size_max as usize,
            },
        };
        let capacity = Capacity {
            jobs_max: u16::try_from(self.in_flight_max()).unwrap_or(u16::MAX),
            bytes_max: worker_bytes_max,
        };
        PoolOptions::new(self.strategy)
            .size(size)
            .capacity(capacity)
    }

    /// The first setting that another pool has otherwise: its name, here and there.
    pub fn difference(&self, other: &PoolSettings) -> Option<(String, String, String)> {
        let fields = |settings: &PoolSettings| match serde_json::to_value(settings) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        let others = fields(other);
        fields(self)
            .into_iter()
            .find_map(|(name, has)| match others.get(&name) {
                Some(asked) if *asked != has => Some((name, has.to_string(), asked.to_string())),
                _ => None,
            })
    }
}

/// A strategy by its name.
mod strategy_name {
    use encke_pool::Strategy;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(strategy: &Strategy, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(strategy.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Strategy, D::Error> {
        let name = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        name.parse().map_err(D::Error::custom)
    }
}

fn size_max() -> u32 {
    4_096
}

fn ack_ms() -> u64 {
    30_000
}

fn attempts() -> u16 {
    3
}

fn job_bytes_max() -> u32 {
    1 << 20
}

fn events() -> bool {
    true
}

/// Jobs that a worker may have at a time when nobody says otherwise.
const IN_FLIGHT: u32 = 8;
const IN_FLIGHT_MAX: u64 = 1_000;
const SIZE_MAX: u64 = 65_536;
const ACK_MS_LEAST: u64 = 10;
/// A day.
const ACK_MS_MAX: u64 = 86_400_000;
const ATTEMPTS_MAX: u64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_has_a_default() {
        let settings: PoolSettings =
            serde_json::from_str(r#"{"type":"claim","in_flight":9}"#).unwrap();
        let settings = settings.checked(&PoolLimits::default()).unwrap();
        assert_eq!(settings.in_flight_max(), 1);
        assert_eq!(settings.ack_ms, 30_000);
        assert_eq!(settings.waiting_max(), 1_000_000);
    }

    #[test]
    fn every_bound_is_told() {
        for (field, value) in [
            ("size", "0"),
            ("size_max", "65537"),
            ("ack_ms", "9"),
            ("attempts", "0"),
            ("in_flight", "1001"),
            ("job_bytes_max", "1048577"),
            ("waiting_max", "0"),
        ] {
            let text = format!(r#"{{"type":"random","{field}":{value}}}"#);
            let settings: PoolSettings = serde_json::from_str(&text).unwrap();
            let error = settings.checked(&PoolLimits::default()).unwrap_err();
            assert!(error.to_string().contains(value), "{field}: {error}");
        }
    }

    #[test]
    fn a_difference_names_the_setting() {
        let parse = |text| serde_json::from_str::<PoolSettings>(text).unwrap();
        let one = parse(r#"{"type":"hash"}"#);
        let other = parse(r#"{"type":"hash","attempts":5}"#);
        assert_eq!(one.difference(&one), None);
        let (name, has, asked) = one.difference(&other).unwrap();
        assert_eq!((&*name, &*has, &*asked), ("attempts", "3", "5"));
    }
}
