//! Tokens that were refused after a verification of their signatures, by the addresses of their senders.
//!
//! A verification costs a shard up to 0.2 ms (ES384). An address whose tokens are refused has few verifications a second left; its other
//! tokens are refused without one. Tokens that are remembered need none.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use encke_clock::SteadyTime;

use crate::denied::AccessDenied;

/// A fixed amount of memory for all addresses: each has a place in two rows, which it shares with others. The smaller debt counts.
#[derive(Debug)]
pub(crate) struct FailedTokens {
    rows: [Row; 2],
}

#[derive(Debug)]
struct Row {
    hasher: RandomState,
    /// When the debt of each place ends, in milliseconds of the steady clock. Each failure adds [`FAILED_TOKEN`].
    debt_ends_ms: Box<[AtomicU64]>,
}

impl FailedTokens {
    pub(crate) fn new() -> Self {
        FailedTokens {
            rows: [(); 2].map(|()| Row::new()),
        }
    }

    /// Refuses further tokens of an address, good ones as well, while its debt is above [`DEBT_MAX`]. A client without an address is not
    /// limited.
    ///
    /// # Errors
    /// [`AccessDenied::TooManyFailures`].
    pub(crate) fn check(
        &self,
        address: Option<IpAddr>,
        now: SteadyTime,
    ) -> Result<(), AccessDenied> {
        let Some(address) = address else {
            return Ok(());
        };
        let places = self.rows.iter().map(|row| row.of(address));
        let debt_ends_ms = places.map(|place| place.load(Ordering::Relaxed)).min();
        let debt = SteadyTime::from_ms(debt_ends_ms.unwrap_or(0)).since(now);
        let over = debt.saturating_sub(DEBT_MAX);
        match over.is_zero() {
            true => Ok(()),
            false => Err(AccessDenied::TooManyFailures {
                retry_s: over.as_secs() + 1,
            }),
        }
    }

    /// Charges an address for a token that was refused after its verification, by its signature or its claims.
    pub(crate) fn count(&self, address: Option<IpAddr>, now: SteadyTime) {
        let Some(address) = address else {
            return;
        };
        for row in &self.rows {
            let longer = |debt_ends_ms| {
                let debt_ends = SteadyTime::from_ms(debt_ends_ms).max(now);
                Some(debt_ends.after(FAILED_TOKEN).as_ms())
            };
            let place = row.of(address);
            let _ = place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, longer);
        }
    }
}

impl Row {
    fn new() -> Self {
        Row {
            hasher: RandomState::new(),
            debt_ends_ms: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn of(&self, address: IpAddr) -> &AtomicU64 {
        // An IPv6 client has a /64.
        let network = match address.to_canonical() {
            IpAddr::V4(address) => u128::from(u32::from(address)),
            IpAddr::V6(address) => u128::from(address) >> 64 << 64,
        };
        &self.debt_ends_ms[self.hasher.hash_one(network) as usize % PLACES]
    }
}

/// The debt of a refused token: at most 20 verifications a second when the burst is used.
const FAILED_TOKEN: Duration = Duration::from_millis(50);
/// Tokens of an address that may be refused at once.
pub(crate) const FAILED_TOKENS_BURST: u32 = 100;
/// The debt of an address before the last token of a burst.
const DEBT_MAX: Duration = FAILED_TOKEN.saturating_mul(FAILED_TOKENS_BURST - 1);
/// Places of a row: 256 KiB for both rows.
const PLACES: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_whose_tokens_are_refused_is_limited_and_others_are_not() {
        let failed = FailedTokens::new();
        let (stranger, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let mut now = SteadyTime::from_ms(7_000);
        for _ in 0..FAILED_TOKENS_BURST {
            assert_eq!(failed.check(Some(stranger), now), Ok(()));
            failed.count(Some(stranger), now);
            failed.count(None, now);
        }
        let refused = Err(AccessDenied::TooManyFailures { retry_s: 1 });
        assert_eq!(failed.check(Some(stranger), now), refused);
        assert_eq!(failed.check(Some(other), now), Ok(()));
        assert_eq!(failed.check(None, now), Ok(()));
        now = now.after(FAILED_TOKEN);
        assert_eq!(failed.check(Some(stranger), now), Ok(()));
        failed.count(Some(stranger), now);
        assert_eq!(failed.check(Some(stranger), now), refused);
    }

    #[test]
    fn clients_of_ipv6_are_their_networks() {
        let failed = FailedTokens::new();
        let now = SteadyTime::from_ms(1);
        for client in 0..u64::from(FAILED_TOKENS_BURST) {
            let address = format!("2001:db8:0:1::{client:x}").parse().unwrap();
            failed.count(Some(address), now);
        }
        let check = |text: &str| failed.check(Some(text.parse().unwrap()), now);
        assert!(check("2001:db8:0:1::ffff").is_err());
        assert_eq!(check("2001:db8:0:2::1"), Ok(()));
    }
}
