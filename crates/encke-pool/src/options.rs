//! The options of a pool.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::parts::PARTS;

/// How a pool picks among its connected workers. The names are those of the HTTP interface and of the field reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Strategy {
    /// One worker after another: `round_robin`. Threads take turns in groups, so that they do not wait for each other: one
    /// thread spreads its picks exactly, all together to within [`Self::UNEVEN_MAX`].
    RoundRobin,
    /// Any worker, all with the same probability: `random`.
    Random,
    /// By a value, the same worker for the same value while that worker is connected: `hash`.
    Hash,
    /// By slot: `direct`.
    Direct,
    /// The first free worker, one job at a time: `claim`.
    Claim,
}

impl Strategy {
    /// The most picks by which two workers of a `round_robin` pool differ, if all have room: one for each group of threads.
    pub const UNEVEN_MAX: usize = PARTS;

    /// Every strategy.
    pub const ALL: [Self; 5] = [
        Self::RoundRobin,
        Self::Random,
        Self::Hash,
        Self::Direct,
        Self::Claim,
    ];

    /// The name in configurations, requests and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::Random => "random",
            Self::Hash => "hash",
            Self::Direct => "direct",
            Self::Claim => "claim",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not a strategy.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("unknown pool type {0:?}, expected round_robin, random, hash, direct or claim")]
pub struct UnknownStrategy(pub String);

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, UnknownStrategy> {
        Self::ALL
            .into_iter()
            .find(|strategy| strategy.name() == name)
            .ok_or_else(|| UnknownStrategy(name.to_owned()))
    }
}

/// How many workers a pool may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Exactly this many slots.
    Fixed(usize),
    /// As many slots as needed, up to this many.
    Growing {
        /// The maximum.
        size_max: usize,
    },
}

impl Size {
    /// The default.
    pub const GROWING_DEFAULT: Self = Self::Growing { size_max: 4_096 };

    /// The most slots of any pool: a larger size means this one.
    pub const SLOTS_MAX: usize = 65_536;

    /// How many slots there are, or may be.
    pub const fn max(self) -> usize {
        match self {
            Self::Fixed(size) | Self::Growing { size_max: size } => size,
        }
    }

    /// The same with no more than [`Self::SLOTS_MAX`].
    pub(crate) fn bounded(self) -> Self {
        let size_max = self.max().min(Self::SLOTS_MAX);
        match self {
            Self::Fixed(_) => Self::Fixed(size_max),
            Self::Growing { .. } => Self::Growing { size_max },
        }
    }
}

impl Default for Size {
    fn default() -> Self {
        Self::GROWING_DEFAULT
    }
}

/// How much work one worker takes at a time. A worker without jobs takes a job of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The maximum number of jobs. At least 1.
    pub jobs_max: u16,
    /// The maximum sum of their bytes.
    pub bytes_max: u64,
}

/// The options of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// How the pool picks.
    pub strategy: Strategy,
    /// How many workers it may have, at most [`Size::SLOTS_MAX`].
    pub size: Size,
    /// How much work each worker takes. None: unlimited. A worker of a `claim` pool takes one job in any case.
    pub capacity: Option<Capacity>,
}

impl PoolOptions {
    /// A growing pool of workers without a limit.
    pub const fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            size: Size::GROWING_DEFAULT,
            capacity: None,
        }
    }

    /// The same with another size.
    pub const fn size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    /// The same with a limit for each worker.
    pub const fn capacity(mut self, capacity: Capacity) -> Self {
        self.capacity = Some(capacity);
        self
    }
}
