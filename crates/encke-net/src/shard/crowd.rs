//! Whether new connections come in such numbers, and to stay, that it pays to gather them.
//!
//! Each connection that is accepted alone costs its shard a wake-up and another one for its request, with nothing of what
//! they need in the processor's caches. So while a crowd arrives, the listener is left alone for a moment after each time it
//! was asked, and those who came meanwhile are accepted one after the other, with their requests. Who comes alone never
//! waits; nor do clients that connect anew for each request, who would be slowed by it.

/// Those who came lately.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// Since when they are counted.
    since_us: u64,
    /// How many came since then.
    came: usize,
    /// How many connections there were then.
    there: usize,
    /// They are to be gathered.
    gathers: bool,
}

impl Crowd {
    /// So many have come, and so many connections there are with them. Whether those who come next are to be gathered.
    pub(super) fn note(&mut self, came: usize, there: usize, now_us: u64) -> bool {
        self.came += came;
        if came == 0 {
            self.gathers = false;
        } else if self.came >= CROWD {
            let quick = now_us.saturating_sub(self.since_us) <= CROWD_US;
            let stay = there >= self.there + self.came / 2;
            self.gathers = quick && stay;
        } else {
            return self.gathers;
        }
        *self = Crowd {
            since_us: now_us,
            came: 0,
            there,
            gathers: self.gathers,
        };
        self.gathers
    }
}

/// So many within so long are a crowd, if at least half of them stay.
const CROWD: usize = 16;
const CROWD_US: u64 = 16_000;

/// How long those who come are gathered. What a client in a crowd may wait for it, beside a round trip at least.
pub(super) const GATHER_MS: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    /// So many come one by one, each after so long. Whether the next are gathered.
    fn come(
        crowd: &mut Crowd,
        now_us: &mut u64,
        count: usize,
        every_us: u64,
        all_stay: bool,
    ) -> bool {
        let mut there = crowd.there;
        (0..count).fold(false, |_, _| {
            *now_us += every_us;
            there += usize::from(all_stay);
            crowd.note(1, there, *now_us)
        })
    }

    #[test]
    fn those_who_come_quickly_and_stay_are_gathered() {
        let (mut crowd, mut now_us) = (Crowd::default(), 1_000_000);
        assert!(
            !come(&mut crowd, &mut now_us, CROWD, 400, true),
            "nobody knows how long the first has been there"
        );
        assert!(come(&mut crowd, &mut now_us, CROWD, 400, true));
        assert!(come(&mut crowd, &mut now_us, 10 * CROWD, 400, true));
        // In batches, too.
        let there = crowd.there;
        assert!(crowd.note(5, there + 5, now_us + 2_000));
        assert!(crowd.note(64, there + 69, now_us + 2_100));
    }

    #[test]
    fn those_who_come_slowly_or_leave_at_once_are_not() {
        let (mut crowd, mut now_us) = (Crowd::default(), 1_000_000);
        assert!(!come(&mut crowd, &mut now_us, 100, 1_200, true));
        assert!(!come(&mut crowd, &mut now_us, 100, 100, false));
    }

    #[test]
    fn a_crowd_is_over_when_nobody_comes_or_they_come_slowly() {
        let (mut crowd, mut now_us) = (Crowd::default(), 1_000_000);
        assert!(come(&mut crowd, &mut now_us, 3 * CROWD, 100, true));
        assert!(!crowd.note(0, crowd.there, now_us + 2_000));
        assert!(!come(&mut crowd, &mut now_us, 1, 100, true));
        assert!(come(&mut crowd, &mut now_us, 2 * CROWD, 100, true));
        assert!(!come(&mut crowd, &mut now_us, CROWD, 2_000, true));
    }
}
