//! What a relay does with changes of streams, and with refusals of its log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_stream::{Outcome, Refusal, Reply, StreamChange};

use super::super::relay::{EARLY_MAX, Relay, RelayEffect};
use super::HOLD;
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};

/// A relay whose machines are being restored, for its first term.
fn restoring(now: Instant) -> Relay {
    let mut relay = Relay::new(now, "a", 1, 1, HOLD, Arc::default());
    relay.tick(now + Duration::from_secs(1), None, Some(Duration::ZERO));
    let claim = relay
        .take_effects()
        .into_iter()
        .find_map(|effect| match effect {
            RelayEffect::Submit(_, token) => Some(token),
            _ => None,
        });
    let reply = Reply {
        token: claim.expect("a claim"),
        outcome: Outcome::Done,
    };
    relay.message(now, DispatcherMessage::Committed(vec![reply]));
    let effects = relay.take_effects();
    assert!(matches!(effects[..], [RelayEffect::Restore(1), ..]));
    relay
}

fn change() -> StreamChange {
    StreamChange::Ended {
        no: 7,
        name: "s".into(),
    }
}

#[test]
fn changes_of_streams_wait_for_the_machines_that_are_restored() {
    let now = Instant::now();
    let mut relay = restoring(now);
    for _ in 0..2 {
        relay.message(now, DispatcherMessage::Changed(vec![change()]));
        assert!(relay.take_effects().is_empty());
    }
    assert!(relay.restored(now, 1));
    let dispatched = |relay: &mut Relay| -> Vec<usize> {
        let effects = relay.take_effects().into_iter();
        let changes = effects.filter_map(|effect| match effect {
            RelayEffect::Dispatch(DispatcherMessage::Changed(changes)) => Some(changes.len()),
            _ => None,
        });
        changes.collect()
    };
    assert_eq!(dispatched(&mut relay), [2]);
    relay.message(now, DispatcherMessage::Changed(vec![change()]));
    assert_eq!(dispatched(&mut relay), [1]);
    // A node that does not dispatch drops them.
    relay.not_restored(now, 1);
    relay.message(now, DispatcherMessage::Changed(vec![change()]));
    assert!(dispatched(&mut relay).is_empty());
}

#[test]
fn changes_that_wait_are_bounded() {
    let now = Instant::now();
    let mut relay = restoring(now);
    let changes = vec![change(); EARLY_MAX];
    relay.message(now, DispatcherMessage::Changed(changes));
    assert!(relay.is_dispatching());
    relay.message(now, DispatcherMessage::Changed(vec![change()]));
    assert!(!relay.is_dispatching());
}

#[test]
fn a_log_that_refuses_to_change_nothing_costs_no_turn() {
    let now = Instant::now();
    let mut relay = restoring(now);
    assert!(relay.restored(now, 1));
    for kind in [OpKind::Barriers, OpKind::Subscriptions] {
        let refused = Reply {
            token: first_op(1, kind),
            outcome: Outcome::Refused(Refusal::Unknown("?".into())),
        };
        relay.message(now, DispatcherMessage::Committed(vec![refused]));
        assert_eq!(relay.is_dispatching(), kind == OpKind::Barriers);
    }
}
