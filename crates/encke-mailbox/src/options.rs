//! What a mailbox can be told.

use std::time::Duration;

/// How much a lane may hold while it gathers. An item must fit under both figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most items that may wait. At least 1.
    pub items_max: usize,
    /// The most bytes that the waiting items may add up to, as their senders declared them. A single item larger than
    /// this (or than 4 GiB - 1) never fits and is refused with [`crate::Why::TooLarge`].
    pub bytes_max: usize,
}

impl Bounds {
    /// What a lane holds when nobody says otherwise: 65,536 items, 64 MiB.
    pub const DEFAULT: Self = Self {
        items_max: 65_536,
        bytes_max: 64 << 20,
    };
}

impl Default for Bounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Which queue of a mailbox an item goes to. Priority is strict: nothing in `Data` is handed out while `Control` waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Few and urgent: shut down, change a setting, read a state.
    Control = 0,
    /// The work itself.
    Data = 1,
}

impl Lane {
    /// Every lane, the most urgent first.
    pub const ALL: [Self; 2] = [Self::Control, Self::Data];
    pub(crate) const COUNT: usize = Self::ALL.len();
}

/// What a lane does with an item that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Overload {
    /// `try_send` is refused, `send` waits for room, first come first served.
    #[default]
    Wait,
    /// Both are refused at once. With a [`LaneOptions::resume_percent`] below 100 the lane goes on refusing until it
    /// has been worked off that far, so that senders see one long refusal and not a flicker.
    Refuse,
    /// The oldest items that nobody has taken yet are dropped until the new one fits.
    ShedOldest,
    /// Everything that nobody has taken yet is dropped, and the new item accepted.
    Flush,
}

/// What a lane is doing about its load right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// There is room.
    Open,
    /// Full, or over [`LaneOptions::wait_percent`]; senders wait.
    Waiting,
    /// Full, or was full and is not yet worked off; senders are refused.
    Refusing,
    /// Full, or was full and is not yet worked off; old items go.
    Shedding,
}

/// When waiting too long makes items worthless.
///
/// When the oldest item has never waited for less than `target` during a whole `interval`, items that have waited for
/// more than twice the target are dropped as they come to the receiver's hands, until a shorter wait is seen. (This is
/// controlled delay, CoDel: a burst is let pass, a standing queue is cut.) Ages have the grain of the kernel's tick, 1
/// to 10 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgeLimit {
    /// How long an item may wait while all is well.
    pub target: Duration,
    /// How long the queue must stand before anything is dropped.
    pub interval: Duration,
}

impl AgeLimit {
    /// 20 ms and 500 ms.
    pub const DEFAULT: Self = Self {
        target: Duration::from_millis(20),
        interval: Duration::from_millis(500),
    };
}

impl Default for AgeLimit {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The options of one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOptions {
    /// How much may wait.
    pub bounds: Bounds,
    /// What happens when that is reached.
    pub overload: Overload,
    /// From this share of the bounds on, `send` waits, although `try_send` still finds room: who can wait is slowed down
    /// before who can't is refused. Those who wait are let in when the lane is below the share again, and `try_send`
    /// may overtake them. None, the default: `send` waits when the lane is full, if at all.
    pub wait_percent: Option<u8>,
    /// What is too old to be worth handling. None, the default: nothing.
    pub age_limit: Option<AgeLimit>,
    /// A lane that was full leaves its overload mode when its depth, waiting and in hand, is down to this share of its
    /// bounds. 100, the default, means: as soon as there is room. For `Wait` it has no meaning beyond [`Mode`].
    pub resume_percent: u8,
}

impl LaneOptions {
    /// A lane with these bounds, waiting when full.
    pub const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            overload: Overload::Wait,
            wait_percent: None,
            age_limit: None,
            resume_percent: 100,
        }
    }

    /// The same with another answer to overload.
    pub const fn overload(mut self, overload: Overload) -> Self {
        self.overload = overload;
        self
    }

    /// The same, but `send` waits from this share of the bounds on; more than 100 counts as 100.
    pub const fn wait_percent(mut self, percent: u8) -> Self {
        self.wait_percent = Some(percent);
        self
    }

    /// The same, but items that have become too old are dropped instead of handled.
    pub const fn age_limit(mut self, limit: AgeLimit) -> Self {
        self.age_limit = Some(limit);
        self
    }

    /// The same with another mark at which overload ends, in percent of the bounds; more than 100 counts as 100.
    pub const fn resume_percent(mut self, percent: u8) -> Self {
        self.resume_percent = percent;
        self
    }
}

impl Default for LaneOptions {
    fn default() -> Self {
        Self::new(Bounds::DEFAULT)
    }
}

/// The options of a mailbox: those of its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The control lane. By default 1,024 items and 1 MiB, waiting when full.
    pub control: LaneOptions,
    /// The data lane.
    pub data: LaneOptions,
}

impl Options {
    /// What the control lane holds when nobody says otherwise.
    pub const CONTROL_BOUNDS: Bounds = Bounds {
        items_max: 1_024,
        bytes_max: 1 << 20,
    };

    /// A mailbox whose data lane has these bounds; both lanes wait when full.
    pub const fn new(data: Bounds) -> Self {
        Self {
            control: LaneOptions::new(Self::CONTROL_BOUNDS),
            data: LaneOptions::new(data),
        }
    }

    /// The same with another answer of the data lane to overload.
    pub const fn overload(mut self, overload: Overload) -> Self {
        self.data = self.data.overload(overload);
        self
    }

    /// The same with another control lane.
    pub const fn control(mut self, control: LaneOptions) -> Self {
        self.control = control;
        self
    }

    /// The same with another data lane.
    pub const fn data(mut self, data: LaneOptions) -> Self {
        self.data = data;
        self
    }

    pub(crate) fn lane(&self, lane: Lane) -> LaneOptions {
        match lane {
            Lane::Control => self.control,
            Lane::Data => self.data,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new(Bounds::DEFAULT)
    }
}
