//! The settings of a pool and their bounds.

use std::borrow::Cow;

use encke_pool::{Capacity, PoolOptions, Size, Strategy};
use serde::{Deserialize, Serialize};

/// The settings of a pool. A request that creates it may omit all but the type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// How a worker is picked: `round_robin`, `random`, `hash`, `direct` or `claim`.
    #[serde(rename = "type", with = "strategy_name")]
    pub strategy: Strategy,
    /// The exact number of slots. None: as many as needed, up to `size_max`.
    #[serde(default)]
    pub size: Option<u32>,
    /// The maximum number of workers of a pool without a fixed size.
    #[serde(default = "size_max")]
    pub size_max: u32,
    /// The time limit of an attempt, in milliseconds. A worker may extend it.
    #[serde(default = "ack_ms")]
    pub ack_ms: u64,
    /// The maximum number of attempts at a job.
    #[serde(default = "attempts")]
    pub attempts: u16,
    /// The wait before the next attempt after the first one was refused or timed out, in milliseconds; it doubles with each attempt.
    #[serde(default = "retry_ms")]
    pub retry_ms: u64,
    /// The maximum of that wait.
    #[serde(default = "retry_ms_max")]
    pub retry_ms_max: u64,
    /// The maximum number of jobs that one worker has at a time; always 1 in a `claim` pool.
    #[serde(default)]
    pub in_flight: Option<u32>,
    /// The maximum size of a job, in bytes.
    #[serde(default = "job_bytes_max")]
    pub job_bytes_max: u32,
    /// The maximum number of waiting jobs.
    #[serde(default)]
    pub waiting_max: Option<u32>,
    /// Whether the stream `pool/NAME/events` is written.
    #[serde(default = "events")]
    pub events: bool,
    /// Whether its jobs wait: it accepts them, and gives none to a worker. Attempts that run go on.
    #[serde(default)]
    pub paused: bool,
}

/// A change of settings. Those that it leaves out stay, and so do the type and the number of slots, by which jobs find their workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsChange {
    /// See [`PoolSettings::ack_ms`]. Attempts that run keep their time.
    pub ack_ms: Option<u64>,
    /// See [`PoolSettings::attempts`].
    pub attempts: Option<u16>,
    /// See [`PoolSettings::retry_ms`].
    pub retry_ms: Option<u64>,
    /// See [`PoolSettings::retry_ms_max`].
    pub retry_ms_max: Option<u64>,
    /// See [`PoolSettings::in_flight`].
    pub in_flight: Option<u32>,
    /// See [`PoolSettings::job_bytes_max`]. Jobs that wait stay.
    pub job_bytes_max: Option<u32>,
    /// See [`PoolSettings::waiting_max`]. Jobs that wait stay.
    pub waiting_max: Option<u32>,
    /// See [`PoolSettings::events`].
    pub events: Option<bool>,
    /// See [`PoolSettings::paused`].
    pub paused: Option<bool>,
}

/// The bounds of all pools and of their settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLimits {
    /// The maximum number of pools.
    pub pools_max: usize,
    /// The maximum of a pool's `waiting_max`, and its default.
    pub waiting_max: u32,
    /// The maximum of a pool's `job_bytes_max`, and a bound of its default.
    pub job_bytes_max: u32,
    /// The maximum of bytes of waiting jobs in memory, over all pools. The content of other jobs is read when they are dispatched.
    pub cache_bytes: usize,
    /// The maximum number of finished jobs in memory, per pool.
    pub finished_max: usize,
    /// The maximum of bytes of their results in memory, per pool.
    pub finished_bytes: usize,
    /// The longest wait for a job or for a result, in milliseconds.
    pub wait_ms_max: u64,
    /// The maximum of bytes of the jobs that one worker has, unless it has only one.
    pub worker_bytes_max: u64,
    /// The number of records after which a journal is rotated.
    pub segment_records: u64,
    /// The size at which decisions, or a snapshot, continue in another record.
    pub record_bytes: usize,
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
        }
    }
}

/// A setting out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{name} is {value}, expected {least} to {most}")]
pub struct SettingOutOfRange {
    /// The setting.
    pub name: Cow<'static, str>,
    /// Its value.
    pub value: u64,
    /// The minimum.
    pub least: u64,
    /// The maximum.
    pub most: u64,
}

impl SettingsChange {
    /// Refuses values out of range, and what the settings of the pool fix. What does not change is not checked: limits may have been
    /// lowered since.
    pub(crate) fn check(
        &self,
        settings: &PoolSettings,
        limits: &PoolLimits,
    ) -> Result<(), SettingOutOfRange> {
        for (name, value) in [
            ("ack_ms", self.ack_ms),
            ("attempts", self.attempts.map(u64::from)),
            ("retry_ms", self.retry_ms),
            ("retry_ms_max", self.retry_ms_max),
            ("in_flight", self.in_flight.map(u64::from)),
            ("job_bytes_max", self.job_bytes_max.map(u64::from)),
            ("waiting_max", self.waiting_max.map(u64::from)),
        ] {
            value.map_or(Ok(()), |value| check(name, value, limits))?;
        }
        match (settings.strategy, self.in_flight) {
            (Strategy::Claim, Some(in_flight)) if in_flight != 1 => Err(SettingOutOfRange {
                name: "in_flight of a claim pool".into(),
                value: in_flight.into(),
                least: 1,
                most: 1,
            }),
            _ => Ok(()),
        }
    }
}

/// Refuses a value of a setting that is out of its range.
fn check(name: &'static str, value: u64, limits: &PoolLimits) -> Result<(), SettingOutOfRange> {
    let (least, most) = match name {
        "size" => (1, SIZE_MAX),
        "ack_ms" => (ACK_MS_LEAST, ACK_MS_MAX),
        "attempts" => (1, ATTEMPTS_MAX),
        "in_flight" => (1, IN_FLIGHT_MAX),
        "job_bytes_max" => (1, limits.job_bytes_max.into()),
        "waiting_max" => (1, limits.waiting_max.into()),
        _ => (0, DELAY_MS_MAX),
    };
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(SettingOutOfRange {
            name: name.into(),
            value,
            least,
            most,
        }),
    }
}

impl PoolSettings {
    /// Fills in defaults and checks the bounds.
    ///
    /// # Errors
    /// A setting is out of range.
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
        for (name, value) in [
            ("size", u64::from(self.size_max)),
            ("ack_ms", self.ack_ms),
            ("attempts", self.attempts.into()),
            ("retry_ms", self.retry_ms),
            ("retry_ms_max", self.retry_ms_max),
            ("in_flight", in_flight.into()),
            ("job_bytes_max", self.job_bytes_max.into()),
            ("waiting_max", waiting_max.into()),
        ] {
            check(name, value, limits)?;
        }
        Ok(self)
    }

    /// The settings after a change.
    pub(crate) fn changed(&self, change: &SettingsChange) -> PoolSettings {
        let in_flight = match self.strategy {
            Strategy::Claim => self.in_flight,
            _ => change.in_flight.or(self.in_flight),
        };
        PoolSettings {
            strategy: self.strategy,
            size: self.size,
            size_max: self.size_max,
            ack_ms: change.ack_ms.unwrap_or(self.ack_ms),
            attempts: change.attempts.unwrap_or(self.attempts),
            retry_ms: change.retry_ms.unwrap_or(self.retry_ms),
            retry_ms_max: change.retry_ms_max.unwrap_or(self.retry_ms_max),
            in_flight,
            job_bytes_max: change.job_bytes_max.unwrap_or(self.job_bytes_max),
            waiting_max: change.waiting_max.or(self.waiting_max),
            events: change.events.unwrap_or(self.events),
            paused: change.paused.unwrap_or(self.paused),
        }
    }

    /// The maximum number of jobs that one worker has at a time.
    pub fn in_flight_max(&self) -> u32 {
        self.in_flight.unwrap_or(IN_FLIGHT)
    }

    /// The maximum number of waiting jobs.
    pub fn waiting_max(&self) -> usize {
        self.waiting_max.unwrap_or(u32::MAX) as usize
    }

    /// That number, for the pool that picks.
    pub(crate) fn jobs_of_a_worker(&self) -> u16 {
        u16::try_from(self.in_flight_max()).unwrap_or(u16::MAX)
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
            jobs_max: self.jobs_of_a_worker(),
            bytes_max: worker_bytes_max,
        };
        PoolOptions::new(self.strategy)
            .size(size)
            .capacity(capacity)
    }

    /// The first setting that differs: its name, the value here and the other value. Whether the pool is paused does not count: an
    /// operator pauses it, and clients that create it at their start know nothing of that.
    pub fn difference(&self, other: &PoolSettings) -> Option<(String, String, String)> {
        let fields = |settings: &PoolSettings| match serde_json::to_value(settings) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => serde_json::Map::new(),
        };
        if self.strategy != other.strategy {
            // The defaults of other settings depend on it.
            let name = |settings: &PoolSettings| format!("{:?}", settings.strategy.name());
            return Some(("type".to_owned(), name(self), name(other)));
        }
        let others = fields(other);
        fields(self)
            .into_iter()
            .filter(|(name, _)| name != PAUSED)
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

fn retry_ms() -> u64 {
    1_000
}

fn retry_ms_max() -> u64 {
    60_000
}

fn job_bytes_max() -> u32 {
    1 << 20
}

fn events() -> bool {
    true
}

/// The name of [`PoolSettings::paused`].
const PAUSED: &str = "paused";

/// The default of `in_flight`.
const IN_FLIGHT: u32 = 8;
const IN_FLIGHT_MAX: u64 = 1_000;
const SIZE_MAX: u64 = 65_536;
const ACK_MS_LEAST: u64 = 10;
/// A day.
const ACK_MS_MAX: u64 = 86_400_000;
const ATTEMPTS_MAX: u64 = 1_000;
/// A day.
pub(crate) const DELAY_MS_MAX: u64 = 86_400_000;

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
    fn every_error_names_its_bound() {
        for (field, value) in [
            ("size", "0"),
            ("size_max", "65537"),
            ("ack_ms", "9"),
            ("attempts", "0"),
            ("retry_ms", "86400001"),
            ("retry_ms_max", "86400001"),
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
        let other = parse(r#"{"type":"claim","attempts":5}"#);
        let (name, has, asked) = one.difference(&other).unwrap();
        assert_eq!(
            (&*name, &*has, &*asked),
            ("type", r#""hash""#, r#""claim""#)
        );
    }
}
