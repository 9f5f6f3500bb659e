//! What a pool can be told.

use std::fmt;
use std::str::FromStr;

/// How a pool chooses among its connected workers. The names are those that the HTTP face and the reports use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// One after another: `round_robin`.
    RoundRobin,
    /// Any, each as likely as the next: `random`.
    Random,
    /// By a value, the same worker for the same value as long as that worker is there: `hash`.
    Hash,
    /// By the number of a slot: `direct`.
    Direct,
    /// The first that is free, for one claimant at a time: `claim`.
    Claim,
}

impl Strategy {
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

/// There is no strategy of this name.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("unknown pool type {0:?}: there are round_robin, random, hash, direct and claim")]
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
    /// Exactly so many slots, 0 to one less.
    Fixed(usize),
    /// As many slots as are needed, up to this many.
    Growing {
        /// The bound.
        size_max: usize,
    },
}

impl Size {
    /// The most workers that a growing pool has when nobody says otherwise.
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

/// The options of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How it chooses.
    pub strategy: Strategy,
    /// How many workers it may have, at most [`Size::SLOTS_MAX`].
    pub size: Size,
    /// How many claims may wait. 65,536 by default.
    pub waiting_max: usize,
}

impl Options {
    /// A growing pool of this type.
    pub const fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            size: Size::GROWING_DEFAULT,
            waiting_max: 65_536,
        }
    }

    /// The same with another size.
    pub const fn size(mut self, size: Size) -> Self {
        self.size = size;
        self
    }

    /// The same with another bound on waiting claims.
    pub const fn waiting_max(mut self, waiting_max: usize) -> Self {
        self.waiting_max = waiting_max;
        self
    }
}
