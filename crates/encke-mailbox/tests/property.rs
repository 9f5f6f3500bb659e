//! Random sequences of calls against a simple model of a mailbox.
#![allow(unexpected_cfgs)]
#![cfg(not(encke_model))]

use std::collections::VecDeque;

use encke_mailbox::{Bounds, Lane, Receiver, Sender, mailbox};
use proptest::prelude::*;

const BOUNDS: Bounds = Bounds {
    items_max: 5,
    bytes_max: 40,
};

/// The control lane has bounds of its own.
fn bounds(lane: Lane) -> Bounds {
    match lane {
        Lane::Control => Bounds {
            items_max: 1_024,
            bytes_max: 1 << 20,
        },
        Lane::Data => BOUNDS,
    }
}

#[derive(Clone, Debug)]
enum Call {
    TrySend(Lane, usize),
    TrySendMany(Lane, Vec<usize>),
    /// Drain, having worked off this many of what is in the vector.
    Drain(usize),
    TryRecv,
    Handled(usize),
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let lane = prop_oneof![1 => Just(Lane::Control), 3 => Just(Lane::Data)];
    let bytes = 0..44usize;
    let call = prop_oneof![
        6 => (lane.clone(), 0..12usize).prop_map(|(lane, bytes)| Call::TrySend(lane, bytes)),
        1 => (lane.clone(), bytes.clone()).prop_map(|(lane, bytes)| Call::TrySend(lane, bytes)),
        2 => (lane, prop::collection::vec(bytes, 0..6)).prop_map(|(lane, sizes)| Call::TrySendMany(lane, sizes)),
        2 => (0..8usize).prop_map(Call::Drain),
        3 => Just(Call::TryRecv),
        1 => (0..8usize).prop_map(Call::Handled),
    ];
    prop::collection::vec(call, 0..80)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Item {
    id: u64,
    lane: Lane,
    bytes: usize,
}

/// What a mailbox is: two queues, what the receiver holds, and what it has given away and not reported.
#[derive(Default)]
struct Model {
    queued: [VecDeque<Item>; 2],
    held: [VecDeque<Item>; 2],
    lent: VecDeque<Item>,
    single: Option<Item>,
    carried: [(usize, usize); 2],
    refused: u64,
}

fn sum<'a>(items: impl IntoIterator<Item = &'a Item>) -> (usize, usize) {
    items
        .into_iter()
        .fold((0, 0), |(n, bytes), item| (n + 1, bytes + item.bytes))
}

impl Model {
    fn fits(&self, item: Item) -> bool {
        let (items, bytes) = sum(&self.queued[item.lane as usize]);
        let carried = self.carried[item.lane as usize];
        let bounds = bounds(item.lane);
        items + carried.0 < bounds.items_max && bytes + carried.1 + item.bytes <= bounds.bytes_max
    }

    fn send(&mut self, item: Item) -> bool {
        let bounds = bounds(item.lane);
        let accepted = item.bytes <= bounds.bytes_max && self.fits(item);
        if accepted {
            self.queued[item.lane as usize].push_back(item);
        } else {
            self.refused += 1;
        }
        accepted
    }

    fn in_hand(&self, lane: Lane) -> (usize, usize) {
        let all = self.held[lane as usize]
            .iter()
            .chain(&self.lent)
            .chain(&self.single);
        sum(all.filter(|item| item.lane == lane))
    }

    fn gather(&mut self, lane: Lane) {
        self.carried[lane as usize] = self.in_hand(lane);
        self.held[lane as usize] = std::mem::take(&mut self.queued[lane as usize]);
    }

    fn lend(&mut self) -> Vec<Item> {
        let items: Vec<_> = self.held.iter_mut().flat_map(std::mem::take).collect();
        self.lent.extend(&items);
        items
    }

    fn drain(&mut self, left: usize) -> Vec<Item> {
        self.single = None;
        let settled = self.lent.len().saturating_sub(left);
        self.lent.drain(..settled);
        let mut all = self.lend();
        Lane::ALL.into_iter().for_each(|lane| self.gather(lane));
        all.extend(self.lend());
        all
    }

    fn try_recv(&mut self) -> Option<Item> {
        self.single = None;
        self.lent.clear();
        match self.held.each_ref().map(VecDeque::is_empty) {
            [true, true] => Lane::ALL.into_iter().for_each(|lane| self.gather(lane)),
            [true, false] => self.gather(Lane::Control),
            _ => {}
        }
        self.single = self.held.iter_mut().find_map(VecDeque::pop_front);
        self.single
    }

    fn handled(&mut self, count: usize) {
        let from_batches = count.min(self.lent.len());
        self.lent.drain(..from_batches);
        if count > from_batches {
            self.single = None;
        }
        for lane in Lane::ALL {
            let in_hand = self.in_hand(lane);
            let carried = &mut self.carried[lane as usize];
            *carried = (carried.0.min(in_hand.0), carried.1.min(in_hand.1));
        }
    }
}

struct Pair {
    tx: Sender<Item>,
    rx: Receiver<Item>,
    model: Model,
    batch: Vec<Item>,
    next_id: u64,
}

impl Pair {
    fn item(&mut self, lane: Lane, bytes: usize) -> Item {
        self.next_id += 1;
        Item {
            id: self.next_id,
            lane,
            bytes,
        }
    }

    fn run(&mut self, call: Call) -> Result<(), TestCaseError> {
        match call {
            Call::TrySend(lane, bytes) => {
                let item = self.item(lane, bytes);
                let sent = self.tx.try_send(lane, item, bytes);
                prop_assert_eq!(sent.is_ok(), self.model.send(item));
            }
            Call::TrySendMany(lane, sizes) => {
                let mut items: Vec<_> = sizes
                    .into_iter()
                    .map(|bytes| (self.item(lane, bytes), bytes))
                    .collect();
                let all = items.clone();
                let sent = self.tx.try_send_many(lane, &mut items);
                let fit = all
                    .iter()
                    .take_while(|item| self.model.send(item.0))
                    .count();
                prop_assert_eq!(sent, fit);
                prop_assert_eq!(&items, &all[sent..]);
            }
            Call::Drain(worked_off) => {
                self.batch.drain(..worked_off.min(self.batch.len()));
                let before = self.batch.len();
                let count = self.rx.drain(&mut self.batch);
                prop_assert_eq!(&self.batch[before..], self.model.drain(before));
                prop_assert_eq!(count, self.batch.len() - before);
            }
            Call::TryRecv => prop_assert_eq!(self.rx.try_recv(), self.model.try_recv()),
            Call::Handled(count) => {
                self.rx.handled(count);
                self.model.handled(count);
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let gauge = self.rx.gauge();
        for lane in Lane::ALL {
            let figures = gauge.lane(lane);
            let queued = sum(&self.model.queued[lane as usize]);
            prop_assert_eq!((figures.queued, figures.queued_bytes), queued);
            prop_assert_eq!(
                (figures.in_hand, figures.in_hand_bytes),
                self.model.in_hand(lane)
            );
            prop_assert!(
                figures.depth() <= 2 * bounds(lane).items_max,
                "the invariant: {:?}",
                figures
            );
            prop_assert!(
                figures.bytes() <= 2 * bounds(lane).bytes_max,
                "the invariant: {:?}",
                figures
            );
            prop_assert_eq!(figures.oldest_age.is_some(), figures.depth() > 0);
            prop_assert!(figures.depth_high_water >= figures.depth());
        }
        prop_assert_eq!(self.rx.control_pending(), gauge.control.queued > 0);
        prop_assert_eq!(
            gauge.control.refused + gauge.data.refused,
            self.model.refused
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn a_mailbox_does_what_its_model_does(calls in calls()) {
        let (tx, rx) = mailbox("property", BOUNDS);
        let mut pair = Pair { tx, rx, model: Model::default(), batch: Vec::new(), next_id: 0 };
        for call in calls {
            pair.run(call)?;
        }
    }
}
