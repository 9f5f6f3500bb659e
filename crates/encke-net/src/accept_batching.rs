//! Decides whether a shard accepts connections in batches: when many arrive and stay.
//!
//! Each connection that is accepted alone costs its shard a wake-up, and another one for its request, with cold caches. So
//! while many arrive, the shard ignores the listener for a moment after each batch, and then accepts all that have arrived
//! meanwhile, each with its request. A single connection never waits. Neither do clients that open a connection for each
//! request, which batching would slow down.

/// The connections that arrived lately.
#[derive(Debug, Default)]
pub(crate) struct AcceptBatching {
    /// Since when they are counted.
    since_us: u64,
    /// How many have arrived since then.
    arrived: usize,
    /// How many connections there were then.
    connections: usize,
    batching: bool,
}

impl AcceptBatching {
    /// Counts arrivals, `connections` being all there are with them. Whether the next ones are accepted in batches.
    pub(crate) fn note(&mut self, arrived: usize, connections: usize, now_us: u64) -> bool {
        self.arrived += arrived;
        if arrived == 0 {
            self.batching = false;
        } else if self.arrived >= MANY {
            let quick = now_us.saturating_sub(self.since_us) <= MANY_US;
            let stay = connections >= self.connections + self.arrived / 2;
            self.batching = quick && stay;
        } else {
            return self.batching;
        }
        *self = AcceptBatching {
            since_us: now_us,
            arrived: 0,
            connections,
            batching: self.batching,
        };
        self.batching
    }
}

/// This many arrivals within this time begin batching, if at least half of the connections stay.
const MANY: usize = 16;
const MANY_US: u64 = 16_000;

/// How long a batch gathers: what a client may wait for it, beside a round trip at least.
pub(crate) const GATHER_MS: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections arrive one by one. Whether the next ones are accepted in batches.
    fn come(
        batching: &mut AcceptBatching,
        now_us: &mut u64,
        count: usize,
        every_us: u64,
        all_stay: bool,
    ) -> bool {
        let mut connections = batching.connections;
        (0..count).fold(false, |_, _| {
            *now_us += every_us;
            connections += usize::from(all_stay);
            batching.note(1, connections, *now_us)
        })
    }

    #[test]
    fn connections_that_arrive_quickly_and_stay_are_batched() {
        let (mut batching, mut now_us) = (AcceptBatching::default(), 1_000_000);
        assert!(
            !come(&mut batching, &mut now_us, MANY, 400, true),
            "the first arrival has no time to count from"
        );
        assert!(come(&mut batching, &mut now_us, MANY, 400, true));
        assert!(come(&mut batching, &mut now_us, 10 * MANY, 400, true));
        // In batches, too.
        let connections = batching.connections;
        assert!(batching.note(5, connections + 5, now_us + 2_000));
        assert!(batching.note(64, connections + 69, now_us + 2_100));
    }

    #[test]
    fn connections_that_arrive_slowly_or_leave_at_once_are_not() {
        let (mut batching, mut now_us) = (AcceptBatching::default(), 1_000_000);
        assert!(!come(&mut batching, &mut now_us, 100, 1_200, true));
        assert!(!come(&mut batching, &mut now_us, 100, 100, false));
    }

    #[test]
    fn batching_ends_when_no_connection_arrives_or_they_arrive_slowly() {
        let (mut batching, mut now_us) = (AcceptBatching::default(), 1_000_000);
        assert!(come(&mut batching, &mut now_us, 3 * MANY, 100, true));
        assert!(!batching.note(0, batching.connections, now_us + 2_000));
        assert!(!come(&mut batching, &mut now_us, 1, 100, true));
        assert!(come(&mut batching, &mut now_us, 2 * MANY, 100, true));
        assert!(!come(&mut batching, &mut now_us, MANY, 2_000, true));
    }
}
