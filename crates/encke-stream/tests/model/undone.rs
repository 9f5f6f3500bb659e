//! What an undone batch leaves.

use std::time::Duration;

use encke_clock::{Now, SteadyTime, WallTime};
use encke_stream::{
    Append, Command, Create, CreateExtras, Data, EndReason, Limits, Outcome, Target,
};

use crate::rig::Rig;

#[test]
fn an_undone_append_gives_a_silent_producer_no_more_time() {
    let at = |ms| Now {
        steady: SteadyTime::from_ms(ms),
        wall: WallTime::from_ms(ms),
    };
    let mut rig = Rig::new(Limits::default(), 1_000);
    let extras = CreateExtras {
        producer_timeout_s: Some(1),
        ..CreateExtras::default()
    };
    let create = Create {
        extras,
        ..Create::new("a")
    };
    rig.apply(Command::Create(create), at(1_000));
    rig.commit();

    let target = Target::Named("a".into());
    let data = Data {
        bytes: b"x".to_vec(),
        units: 1,
    };
    let append = Append {
        data,
        ..Append::to(target)
    };
    let appended = rig.apply(Command::Append(append), at(2_000));
    assert!(matches!(appended, Outcome::Appended { .. }), "{appended:?}");
    // The append has moved the deadline of the stream.
    rig.expire(at(2_000));
    assert_eq!(
        rig.machine.expires_in(at(2_000)),
        Some(Duration::from_secs(1))
    );
    rig.abandon();
    assert_eq!(rig.machine.expires_in(at(2_000)), Some(Duration::ZERO));
    rig.expire(at(2_000));
    rig.commit();
    let facts = rig.look("a").unwrap().facts();
    assert_eq!(
        (facts.closed, facts.end),
        (true, Some(EndReason::Abandoned))
    );
}
