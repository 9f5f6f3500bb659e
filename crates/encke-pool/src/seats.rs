//! The connections that are free to be claimed: a bit for each, and a gate in front of them.

use std::ops::Deref;

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

/// The bits of all seats. A connection of a `claim` pool has a seat of its own from when it connects until it has
/// disconnected and its claim is released.
///
/// Invariant: a seat has exactly one owner: the pool while its bit is set, else the claim that cleared the bit, or the
/// connection itself while it is parked. Only the owner may put it back or give it up.
///
/// The highest bit of every word says that claims wait. It is in the same word as the seats, so that a claim takes a seat
/// only if no other waits, and a release learns in the same instruction whether one does: no order between two words
/// matters.
pub(crate) struct Seats {
    /// A power of two, because a division would take longer than the access to a word.
    words: Box<[SeatWord]>,
    /// How many words have ever had a seat in use. Written under the lock of waiting claims; a hint to all others.
    words_used: AtomicUsize,
}

/// Some seats. Alone in its cache line, because every claim writes it.
#[derive(Default)]
#[repr(align(128))]
struct SeatWord(AtomicU64);

/// The result of an attempt to take a seat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TakenSeat {
    Seat(usize),
    NoneFree,
    /// Other claims wait and come first.
    ClaimsWait,
}

const SEATS_PER_WORD: usize = 63;
const GATE: u64 = 1 << 63;

/// The minimum number of words, so that concurrent claims use different ones. Models have two: enough for every way in
/// which words can disagree.
const WORDS_MIN: usize = if cfg!(encke_model) { 2 } else { 8 };

#[cfg(not(encke_model))]
thread_local! {
    /// The word that this thread tries first. It moves on when another thread changes that word: concurrent claims soon
    /// try different words, and a single thread takes workers in order.
    static FIRST_TRIED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Deref for SeatWord {
    type Target = AtomicU64;

    fn deref(&self) -> &AtomicU64 {
        &self.0
    }
}

impl Seats {
    pub(crate) fn new(count: usize) -> Self {
        let words = count.div_ceil(SEATS_PER_WORD).max(count.min(WORDS_MIN));
        Self {
            words: (0..words.next_power_of_two())
                .map(|_| SeatWord::default())
                .collect(),
            words_used: AtomicUsize::new(0),
        }
    }

    /// The number of seats.
    pub(crate) fn count(&self) -> usize {
        self.words.len() * SEATS_PER_WORD
    }

    /// Takes a free seat unless other claims wait.
    pub(crate) fn take(&self) -> TakenSeat {
        let used = self.used();
        // Another pool may have more words.
        let first = first_tried().min(used.len());
        for n in (first..used.len()).chain(0..first) {
            let word = &used[n];
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                if bits & GATE != 0 {
                    return TakenSeat::ClaimsWait;
                }
                match word.compare_exchange_weak(
                    bits,
                    bits & (bits - 1),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => return TakenSeat::Seat(self.number(n, bits.trailing_zeros())),
                    Err(now) => {
                        bits = now;
                        try_first(n + 1);
                    }
                }
            }
        }
        TakenSeat::NoneFree
    }

    /// Takes the first free seat for a waiting claim. Call it under the lock of waiting claims.
    pub(crate) fn take_for_waiting(&self) -> Option<usize> {
        for (n, word) in self.used().iter().enumerate() {
            let mut free = word.load(Ordering::Acquire) & !GATE;
            while free != 0 {
                let bit = free.trailing_zeros();
                let before = word.fetch_and(!(1 << bit), Ordering::AcqRel);
                if before & (1 << bit) != 0 {
                    return Some(self.number(n, bit));
                }
                free = before & !GATE;
            }
        }
        None
    }

    /// Returns a seat to the pool. True: claims wait and must be served.
    pub(crate) fn put(&self, seat: usize) -> bool {
        let (word, bit) = self.place(seat);
        let before = word.fetch_or(bit, Ordering::AcqRel);
        debug_assert_eq!(before & bit, 0, "only the owner puts a seat back");
        before & GATE != 0
    }

    /// Takes this seat from the pool. False: the pool does not own it.
    pub(crate) fn take_back(&self, seat: usize) -> bool {
        let (word, bit) = self.place(seat);
        word.fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Seats up to this one are in use from now on. Call it under the lock of waiting claims.
    pub(crate) fn use_up_to(&self, seat: usize, claims_wait: bool) {
        let words = (seat + 1).min(self.words.len());
        let used = self.used().len();
        if used < words {
            for word in &self.words[used..words] {
                word.store(if claims_wait { GATE } else { 0 }, Ordering::Relaxed);
            }
            self.words_used.store(words, Ordering::Release);
        }
    }

    /// Makes all further claims wait. Call it under the lock of waiting claims.
    pub(crate) fn close_gate(&self) {
        for word in self.used() {
            word.fetch_or(GATE, Ordering::AcqRel);
        }
    }

    /// No claim waits any more. Call it under the lock of waiting claims.
    pub(crate) fn open_gate(&self) {
        for word in self.used() {
            word.fetch_and(!GATE, Ordering::AcqRel);
        }
    }

    /// The word of a seat, and its bit there. Neighbours are in different words.
    fn place(&self, seat: usize) -> (&SeatWord, u64) {
        let words_log2 = self.words.len().ilog2();
        let word = seat & (self.words.len() - 1);
        (&self.words[word], 1 << (seat >> words_log2))
    }

    /// The seat at this bit of the word at this index.
    fn number(&self, word: usize, bit: u32) -> usize {
        ((bit as usize) << self.words.len().ilog2()) + word
    }

    fn used(&self) -> &[SeatWord] {
        &self.words[..self.words_used.load(Ordering::Acquire)]
    }
}

#[cfg(not(encke_model))]
fn first_tried() -> usize {
    // A thread may claim while its locals are being destroyed.
    FIRST_TRIED.try_with(std::cell::Cell::get).unwrap_or(0)
}

#[cfg(not(encke_model))]
fn try_first(word: usize) {
    let _ = FIRST_TRIED.try_with(|first| first.set(word));
}

/// Threads of a model share thread locals.
#[cfg(encke_model)]
fn first_tried() -> usize {
    0
}

#[cfg(encke_model)]
fn try_first(_word: usize) {}

#[cfg(all(test, not(encke_model)))]
mod tests {
    use super::*;

    #[test]
    fn every_seat_has_a_bit_of_its_own_and_neighbours_different_words() {
        for count in [1, 2, 7, 8, 9, 130, 1_000] {
            let seats = Seats::new(count);
            assert!(seats.count() >= count);
            let mut bits = vec![0u64; seats.words.len()];
            for seat in 0..seats.count() {
                let (word, bit) = seats.place(seat);
                let n = seat % seats.words.len();
                assert!(std::ptr::eq(word, &seats.words[n]));
                assert_eq!(bits[n] & bit, 0, "{count}: {seat}");
                bits[n] |= bit;
                assert_eq!(seats.number(n, bit.trailing_zeros()), seat);
            }
            assert!(bits.iter().all(|bits| *bits == !GATE));
        }
    }

    #[test]
    fn a_thread_alone_takes_the_seats_of_a_small_pool_in_their_order() {
        let seats = Seats::new(6);
        assert_eq!(seats.take(), TakenSeat::NoneFree);
        for seat in 0..6 {
            seats.use_up_to(seat, false);
            assert!(!seats.put(seat));
        }
        for seat in 0..6 {
            assert_eq!(seats.take(), TakenSeat::Seat(seat));
        }
        assert_eq!(seats.take(), TakenSeat::NoneFree);
    }

    #[test]
    fn seats_are_taken_from_all_words() {
        let seats = Seats::new(130);
        for seat in [0, 62, 63, 129] {
            seats.use_up_to(seat, false);
            assert!(!seats.put(seat));
        }
        assert_eq!(seats.take(), TakenSeat::Seat(0));
        assert!(seats.take_back(62));
        assert!(!seats.take_back(62));
        assert_eq!(seats.take_for_waiting(), Some(129));
        assert_eq!(seats.take(), TakenSeat::Seat(63));
        assert_eq!(seats.take(), TakenSeat::NoneFree);
        assert_eq!(seats.take_for_waiting(), None);
    }

    #[test]
    fn no_claim_passes_a_closed_gate_and_a_release_sees_it() {
        let seats = Seats::new(130);
        seats.use_up_to(0, false);
        seats.put(0);
        seats.close_gate();
        assert_eq!(seats.take(), TakenSeat::ClaimsWait);
        assert_eq!(seats.take_for_waiting(), Some(0));
        assert!(seats.put(0));
        // A word that comes into use while others wait has its gate closed from the start.
        seats.use_up_to(100, true);
        assert!(seats.put(100));
        seats.open_gate();
        assert_eq!(seats.take(), TakenSeat::Seat(0));
        assert_eq!(seats.take(), TakenSeat::Seat(100));
        assert!(!seats.put(0));
    }
}
