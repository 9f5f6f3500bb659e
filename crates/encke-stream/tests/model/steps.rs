//! Random steps: commands that are often valid, and everything that can happen between them.

use encke_stream::{EndReason, Viewer};
use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::Index;

pub const NAMES: [&str; 6] = ["a", "b", "c", "d/e", "ä", "f"];
pub const OWNERS: [&str; 2] = ["ann", "bob"];
pub const TYPES: [&str; 5] = [
    "application/json",
    "Application/JSON; charset=utf-8",
    "text/plain",
    "application/octet-stream",
    "TEXT/plain",
];

#[derive(Clone, Debug)]
pub enum Step {
    Create {
        name: usize,
        content_type: Option<usize>,
        lifetime: Option<Ends>,
        closed: bool,
        fork: Option<(usize, Option<At>)>,
        size: Size,
        /// An owner, a timeout in seconds, and metadata.
        extras: (Option<usize>, Option<u32>, bool),
        /// Whose streams of its name and of its source's name the creator may use.
        viewers: (Viewer, Viewer),
    },
    Append {
        target: To,
        content_type: Option<usize>,
        producer: Option<(u8, Turn)>,
        writer_seq: Option<u8>,
        closes: bool,
        size: Size,
        extras: AppendStep,
    },
    /// Before an offset, or all.
    Truncate(To, Option<At>),
    Delete(To),
    /// A reader touches a committed stream.
    Read(Index),
    /// A shard has subscribers of a stream, or has none any more.
    Watch(Index),
    Unwatch(Index),
    Wait(u64),
    /// The time of day is set forward or back.
    SetClock(i64),
    Expire,
    Commit,
    Abandon,
    Restart,
    /// Up to this many changes go to the store.
    Store(usize),
    /// Idle streams leave memory, if the store has them.
    Evicted,
}

/// What few appends have.
#[derive(Clone, Debug)]
pub struct AppendStep {
    pub end: Option<EndReason>,
    pub asks_stop: bool,
    pub metadata: bool,
    pub if_tail: Option<At>,
}

/// Lifetimes that end soon, or never.
#[derive(Clone, Copy, Debug)]
pub enum Ends {
    Unbounded,
    Sliding(u64),
    Until(u64),
}

/// A stream by its name, or as an earlier look-up found it.
#[derive(Clone, Debug)]
pub enum To {
    Name(usize),
    Found(Index),
}

/// The number of a producer's request.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    Next,
    Repeated,
    NewEpoch,
    Anything(u64, u64),
}

/// An offset that a client may send.
#[derive(Clone, Debug)]
pub enum At {
    Start,
    /// An earlier tail, or that many units into what follows.
    Seen(Index, u32),
    Anything(u64, u32),
}

#[derive(Clone, Copy, Debug)]
pub enum Size {
    Units(usize),
    Huge,
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..NAMES.len();
    let content_type = weighted(0.6, 0..TYPES.len());
    let lifetime = prop_oneof![
        1 => Just(Ends::Unbounded),
        3 => (0..4_u64).prop_map(Ends::Sliding),
        2 => (0..4000_u64).prop_map(Ends::Until),
    ];
    let size = prop_oneof![
        10 => (0..5_usize).prop_map(Size::Units),
        1 => Just(Size::Huge),
    ];
    let at = prop_oneof![
        1 => Just(At::Start),
        4 => (any::<Index>(), 0..4_u32).prop_map(|(seen, units)| At::Seen(seen, units)),
        1 => (0..60_u64, 0..3_u32).prop_map(|(sequence, units)| At::Anything(sequence, units)),
    ];
    let to = prop_oneof![
        name.clone().prop_map(To::Name),
        any::<Index>().prop_map(To::Found),
    ];
    let extras = (
        weighted(0.1, 0..OWNERS.len()),
        weighted(0.15, 0..3_u32),
        proptest::bool::weighted(0.1),
    );
    let create = (
        name.clone(),
        content_type,
        weighted(0.15, lifetime.clone()),
        proptest::bool::weighted(0.1),
        Just(None),
        size.clone(),
        extras.clone(),
        (viewer(), viewer()),
    );
    let fork = (
        name.clone(),
        weighted(0.1, 0..TYPES.len()),
        weighted(0.1, lifetime),
        proptest::bool::weighted(0.05),
        (name, weighted(0.4, at.clone())).prop_map(Some),
        size.clone(),
        extras,
        (viewer(), viewer()),
    );
    let create = prop_oneof![1 => create, 3 => fork];
    let create = create.prop_map(
        |(name, content_type, lifetime, closed, fork, size, extras, viewers)| Step::Create {
            name,
            content_type,
            lifetime,
            closed,
            fork,
            size,
            extras,
            viewers,
        },
    );
    let turn = prop_oneof![
        5 => Just(Turn::Next),
        2 => Just(Turn::Repeated),
        1 => Just(Turn::NewEpoch),
        2 => (0..3_u64, 0..3_u64).prop_map(|(epoch, seq)| Turn::Anything(epoch, seq)),
    ];
    let append_extras = (
        weighted(0.2, 0..EndReason::ALL.len()),
        proptest::bool::weighted(0.05),
        proptest::bool::weighted(0.05),
        weighted(0.05, at.clone()),
    );
    let append_extras = append_extras.prop_map(|(end, asks_stop, metadata, if_tail)| AppendStep {
        end: end.map(|which| EndReason::ALL[which]),
        asks_stop,
        metadata,
        if_tail,
    });
    let append = (
        to.clone(),
        weighted(0.1, 0..TYPES.len()),
        of((0..4_u8, turn)),
        weighted(0.1, 0..6_u8),
        proptest::bool::weighted(0.05),
        size,
        append_extras,
    );
    let append = append.prop_map(
        |(target, content_type, producer, writer_seq, closes, size, extras)| Step::Append {
            target,
            content_type,
            producer,
            writer_seq,
            closes,
            size,
            extras,
        },
    );
    let step = prop_oneof![
        30 => create,
        35 => append,
        4 => (to.clone(), weighted(0.8, at.clone())).prop_map(|(to, at)| Step::Truncate(to, at)),
        6 => to.prop_map(Step::Delete),
        4 => any::<Index>().prop_map(Step::Read),
        3 => any::<Index>().prop_map(Step::Watch),
        2 => any::<Index>().prop_map(Step::Unwatch),
        6 => (0..1500_u64).prop_map(Step::Wait),
        1 => (-5000..5000_i64).prop_map(Step::SetClock),
        4 => Just(Step::Expire),
        14 => Just(Step::Commit),
        4 => Just(Step::Abandon),
        2 => Just(Step::Restart),
        6 => (1..5_usize).prop_map(Step::Store),
        6 => Just(Step::Evicted),
    ];
    vec(step, 1..140)
}

fn viewer() -> impl Strategy<Value = Viewer> + Clone {
    let own = prop::option::of((0..OWNERS.len()).prop_map(|which| OWNERS[which].into()));
    prop_oneof![6 => Just(Viewer::All), 1 => own.prop_map(Viewer::Of)]
}
