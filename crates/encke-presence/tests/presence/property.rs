//! One registry against a model that is written in another way.

use std::sync::Arc;

use encke_presence::{Presence, PresenceHold};
use proptest::prelude::*;

use crate::replay::{LIMITS, Reader, at, member, place};

#[derive(Clone, Debug)]
enum Call {
    Enter {
        stream: usize,
        id: usize,
        data: Option<usize>,
        grace: usize,
    },
    Anonymous {
        stream: usize,
        grace: usize,
    },
    Leave(usize),
    Turn(u64),
    Follow(usize),
    Unfollow,
    Read(usize),
    Take,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        6 => (0..3_usize, 0..4_usize, proptest::option::of(0..2_usize), 0..3_usize)
            .prop_map(|(stream, id, data, grace)| Call::Enter { stream, id, data, grace }),
        1 => (0..3_usize, 0..3_usize).prop_map(|(stream, grace)| Call::Anonymous { stream, grace }),
        6 => any::<usize>().prop_map(Call::Leave),
        3 => (0..80_u64).prop_map(Call::Turn),
        1 => (0..3_usize).prop_map(Call::Follow),
        1 => Just(Call::Unfollow),
        2 => (0..3_usize).prop_map(Call::Read),
        1 => Just(Call::Take),
    ];
    proptest::collection::vec(call, 1..120)
}

/// A member of the model.
#[derive(Clone, Debug)]
struct Present {
    stream: usize,
    id: usize,
    data: Option<usize>,
    /// It has no connection, and this is when it leaves: known from the turn after its last connection.
    end: Option<Option<u64>>,
}

#[derive(Default)]
struct Model {
    /// In the order of joining.
    members: Vec<Present>,
    /// Connections, with the member's id if they have one.
    connections: Vec<(usize, Option<usize>)>,
    graces: [u64; 3],
    followed: Vec<usize>,
    now: u64,
}

impl Model {
    fn enter(&mut self, stream: usize, id: usize, data: Option<usize>) {
        self.connections.push((stream, Some(id)));
        match self
            .members
            .iter_mut()
            .find(|one| (one.stream, one.id) == (stream, id))
        {
            Some(present) => (present.data, present.end) = (data, None),
            None => self.members.push(Present {
                stream,
                id,
                data,
                end: None,
            }),
        }
    }

    fn leave(&mut self, connection: usize) {
        let (stream, id) = self.connections.remove(connection);
        if id.is_none() || self.connections.contains(&(stream, id)) {
            return;
        }
        let place = self
            .members
            .iter()
            .position(|one| (one.stream, Some(one.id)) == (stream, id));
        let place = place.unwrap();
        if self.graces[stream] == 0 {
            self.members.remove(place);
        } else {
            self.members[place].end = Some(None);
        }
    }

    fn turn(&mut self) {
        for one in &mut self.members {
            if one.end == Some(None) {
                one.end = Some(Some(self.now + self.graces[one.stream]));
            }
        }
        let now = self.now;
        self.members
            .retain(|one| one.end.flatten().is_none_or(|end| end > now));
    }

    fn check(&self, presence: &Presence) {
        let mut entries = 0;
        for stream in 0..3 {
            let snapshot = presence.snapshot(&stream.to_string());
            let expected = self.members.iter().filter(|one| one.stream == stream);
            let expected: Vec<_> = expected
                .map(|one| (one.id.to_string(), one.data.map(|data| data.to_string())))
                .collect();
            let found = snapshot.members.iter();
            let found: Vec<_> = found
                .map(|one| (one.id.to_string(), one.data.as_deref().map(str::to_owned)))
                .collect();
            assert_eq!(found, expected);
            let connections = self
                .connections
                .iter()
                .filter(|one| one.0 == stream)
                .count();
            let counts = presence.counts(&stream.to_string());
            assert_eq!(
                (counts.members, counts.connections),
                (expected.len(), connections)
            );
            assert_eq!(snapshot.connections, connections);
            let is_kept =
                !expected.is_empty() || connections > 0 || self.followed.contains(&stream);
            entries += usize::from(is_kept);
        }
        let bytes = self
            .members
            .iter()
            .map(|one| 1 + usize::from(one.data.is_some()));
        let figures = presence.figures();
        assert_eq!(
            (presence.entries(), figures.bytes),
            (entries, bytes.sum::<usize>())
        );
        assert_eq!(figures.members as u64, figures.joins - figures.leaves);
    }
}

fn run(presence: &Arc<Presence>, calls: Vec<Call>) {
    let mut model = Model::default();
    let mut holds: Vec<PresenceHold> = Vec::new();
    let mut followers = Vec::new();
    let mut readers: Vec<(usize, Reader)> = Vec::new();
    let mut sequence = 0;
    let take = |readers: &mut Vec<(usize, Reader)>, sequence: &mut u64| {
        let mut events = Vec::new();
        presence.take_events(&mut events);
        for event in &events {
            *sequence += 1;
            assert_eq!(event.sequence, *sequence);
        }
        for (stream, reader) in readers {
            reader.apply(&events);
            reader.check(&presence.snapshot(&stream.to_string()));
        }
    };
    for call in calls {
        match call {
            Call::Enter {
                stream,
                id,
                data,
                grace,
            } => {
                model.graces[stream] = GRACES_MS[grace];
                model.enter(stream, id, data);
                let data = data.map(|data| data.to_string());
                let new = member(&id.to_string(), data.as_deref());
                let name = stream.to_string();
                holds.push(
                    presence
                        .enter(&place(&name, GRACES_MS[grace]), new, at(model.now))
                        .unwrap(),
                );
            }
            Call::Anonymous { stream, grace } => {
                model.graces[stream] = GRACES_MS[grace];
                model.connections.push((stream, None));
                let name = stream.to_string();
                holds.push(
                    presence
                        .enter_anonymous(&place(&name, GRACES_MS[grace]))
                        .unwrap(),
                );
            }
            Call::Leave(which) if !holds.is_empty() => {
                let which = which % holds.len();
                model.leave(which);
                drop(holds.remove(which));
            }
            Call::Turn(ms) => {
                model.now += ms;
                model.turn();
                presence.turn(at(model.now));
            }
            Call::Follow(stream) => {
                model.followed.push(stream);
                followers.push(presence.follow(&stream.to_string()));
            }
            Call::Unfollow => {
                model.followed.pop();
                followers.pop();
            }
            // Events that were not taken yet precede the snapshot.
            Call::Read(stream) => {
                let name = stream.to_string();
                readers.push((stream, Reader::new(&name, &presence.snapshot(&name))));
            }
            Call::Take => take(&mut readers, &mut sequence),
            Call::Leave(_) => {}
        }
        model.check(presence);
    }
    drop((holds, followers));
    presence.turn(at(model.now));
    presence.turn(at(model.now + 1_000));
    take(&mut readers, &mut sequence);
    let figures = presence.figures();
    assert_eq!(
        (
            figures.streams,
            figures.members,
            figures.connections,
            figures.bytes
        ),
        (0, 0, 0, 0)
    );
}

/// Graces that streams have in turns.
const GRACES_MS: [u64; 3] = [0, 50, 200];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn a_registry_does_what_its_model_does(calls in calls()) {
        run(&Presence::new(LIMITS), calls);
    }

    #[test]
    fn a_node_alone_in_its_fleet_does_the_same(calls in calls()) {
        let node = encke_presence::PresenceNode { name: "a".into(), incarnation: 1 };
        run(&Presence::in_fleet(LIMITS, node), calls);
    }
}
