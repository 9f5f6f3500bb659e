//! Figures that are quoted, not measured: the field reports of 2005 to 2013, and of the same work on Erlang/OTP 25 and
//! a 2-core machine.

/// The heading of the reports' figures.
pub(crate) const REPORTS: &str = "2005-2013";

/// The heading of today's Erlang.
pub(crate) const TODAY: &str = "today's Erlang";

/// The heading of what this run has measured.
pub(crate) const NOW: &str = "now";

/// Backlog: how many messages waited, and how long it took to handle them, in seconds.
pub(crate) struct Handled {
    /// Messages.
    pub(crate) messages: u64,
    /// In the report.
    pub(crate) report_s: f64,
    /// In today's Erlang.
    pub(crate) today_s: f64,
}

/// Each message handled with a reply that arrived behind the rest.
pub(crate) const BACKLOG: [Handled; 4] = [
    Handled {
        messages: 10_000,
        report_s: 0.34,
        today_s: 0.52,
    },
    Handled {
        messages: 20_000,
        report_s: 1.2,
        today_s: 1.5,
    },
    Handled {
        messages: 40_000,
        report_s: 4.6,
        today_s: 5.3,
    },
    Handled {
        messages: 80_000,
        report_s: 17.5,
        today_s: 22.9,
    },
];

/// Pool: the time of one pick by a client alone, in microseconds, by the strategy's name.
pub(crate) const POOL_ALONE_US: [(&str, f64); 5] = [
    ("round_robin", 28.0),
    ("hash", 19.0),
    ("random", 37.0),
    ("direct", 18.0),
    ("claim", 76.0),
];

/// Pool: clients at once, and the time of one pick by `round_robin`, in microseconds.
pub(crate) const POOL_CLIENTS_US: [(u64, f64); 4] =
    [(1, 37.0), (10, 250.0), (100, 1_630.0), (1_000, 18_813.0)];
