//! Single rules of a fleet.

use encke_clock::{SteadyTime, WallTime};

use super::*;

/// Sends a command and returns its outcome.
fn outcome(node: &mut Node, what: Do, shared: &mut Shared) -> Outcome {
    let command = command_of(node.name, what, 0);
    node.send(command, NOW_MS, false, shared);
    node.follow(shared, usize::MAX, NOW_MS);
    let replies = node.run().replies.take();
    let (_, outcome) = replies.into_iter().last().expect("the batch has a reply");
    outcome
}

#[test]
fn only_the_dispatcher_of_the_last_term_changes_the_journals_of_pools() {
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let mut shared = Shared::new();
    let journal = NAMES.len() - 1;
    let create = || Do::Create(journal, None, None, None, 3);
    let append = || Do::Append(journal, None, false, 3);
    let refused = Outcome::Refused(Refusal::NotDispatcher);
    assert_eq!(outcome(&mut a, create(), &mut shared), refused);
    assert_eq!(outcome(&mut a, Do::Dispatch(1), &mut shared), Outcome::Done);
    assert!(outcome(&mut a, create(), &mut shared).changes());
    // A term is given once, and an earlier one never again.
    assert_eq!(outcome(&mut b, Do::Dispatch(1), &mut shared), refused);
    assert_eq!(outcome(&mut b, append(), &mut shared), refused);
    assert_eq!(outcome(&mut b, Do::Dispatch(2), &mut shared), Outcome::Done);
    assert!(outcome(&mut b, append(), &mut shared).changes());
    assert_eq!(outcome(&mut a, append(), &mut shared), refused);
    // All nodes may still change everything else.
    let other = Do::Create(0, None, None, None, 3);
    assert!(outcome(&mut a, other, &mut shared).changes());
    // What belongs to a journal's record is refused with it.
    let tail = |node: &mut Node| {
        let stream = node.run().views.find(NAMES[0]).expect("it is there");
        stream.facts().tail
    };
    let before = tail(&mut a);
    assert_eq!(
        outcome(&mut a, Do::Series(0, journal), &mut shared),
        refused
    );
    assert_eq!(tail(&mut a), before);
    assert!(outcome(&mut b, Do::Series(0, journal), &mut shared).changes());
    assert!(tail(&mut b) > before);
    // And the record is not made without what comes before it.
    let journal_tail = |node: &mut Node| {
        let stream = node.run().views.find(NAMES[journal]).expect("it is there");
        stream.facts().tail
    };
    let before = journal_tail(&mut b);
    let missing = outcome(&mut b, Do::Series(1, journal), &mut shared);
    assert_eq!(missing, Outcome::Refused(Refusal::NotFound));
    assert_eq!(journal_tail(&mut b), before);
    // A restart knows the term.
    for node in [&mut a, &mut b] {
        node.follow(&shared, usize::MAX, NOW_MS);
        node.restart();
        let known = node.run().views.log(0).dispatcher();
        assert_eq!(
            known.map(|known| (known.node, known.term)),
            Some(("b".into(), 2))
        );
    }
    assert_eq!(outcome(&mut a, append(), &mut shared), refused);
    assert!(outcome(&mut b, append(), &mut shared).changes());
}

#[test]
fn a_name_that_has_left_and_returns_with_a_lower_run_is_known_after_a_restart() {
    let run = |run| Applied { run, number: 1 };
    let mark = |position, nodes: Vec<(Box<str>, Applied)>| BatchMark {
        tip: Tip {
            position,
            ..Tip::default()
        },
        resume: position,
        nodes,
        dispatcher: None,
    };
    let checkpoint = || {
        let mut chain = Chain::default();
        chain.tip.position = 10;
        chain.nodes.insert("d".into(), run(9));
        chain
    };
    let mut earlier = Chain::default();
    earlier.follow(mark(5, vec![("d".into(), run(8))]), WallTime::from_ms(1));
    earlier.follow(mark(12, vec![("e".into(), run(1))]), WallTime::from_ms(1));
    let mut later = earlier.clone();
    later.follow(
        mark(13, vec![("d".into(), Applied::LEFT)]),
        WallTime::from_ms(1),
    );
    let mut back = later.clone();
    back.follow(mark(14, vec![("d".into(), run(3))]), WallTime::from_ms(1));
    for (marks, expected) in [(earlier, Some(run(9))), (later, None), (back, Some(run(3)))] {
        let mut chain = checkpoint();
        chain.adopt(marks);
        assert_eq!(chain.nodes.get("d").copied(), expected);
        assert_eq!(chain.nodes.get("e").copied(), Some(run(1)));
    }
}

#[test]
fn data_that_was_read_for_another_type_is_refused() {
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let mut shared = Shared::new();
    let create = |content_type: &str| {
        let mut create = command(Do::Create(0, None, None, None, 0), 0);
        if let Command::Create(create) = &mut create {
            create.content_type = Some(content_type.into());
        }
        create
    };
    a.send(create("text/plain"), NOW_MS, false, &mut shared);
    a.follow(&shared, usize::MAX, NOW_MS);
    let Some(Lookup::Stream(text)) = a.run().views.look(NAMES[0]) else {
        panic!("the stream is in memory");
    };
    assert_eq!(
        outcome(&mut b, Do::Delete(0), &mut shared),
        Outcome::Deleted
    );
    b.send(create("application/json"), NOW_MS, false, &mut shared);
    // Node a knows neither, and has read the data as text for a client that sent JSON.
    let mut append = command(Do::Append(0, None, false, 3), 0);
    if let Command::Append(append) = &mut append {
        append.target = Target::Known(text);
        append.content_type = Some("application/json".into());
    }
    append.detach();
    a.send(append, NOW_MS, false, &mut shared);
    a.follow(&shared, usize::MAX, NOW_MS);
    let replies = a.run().replies.take();
    assert!(
        matches!(
            replies.last(),
            Some((1, Outcome::Refused(Refusal::TypeDiffers { .. })))
        ),
        "{replies:?}"
    );
}

#[test]
fn a_reply_comes_when_the_batch_is_applied_and_says_when_it_is_unknown() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    node.send(
        command(Do::Create(0, None, None, None, 3), 0),
        NOW_MS,
        false,
        &mut shared,
    );
    assert!(node.run().replies.0.lock().is_empty());
    node.follow(&shared, usize::MAX, NOW_MS);
    let replies = node.run().replies.take();
    assert!(
        matches!(&replies[..], [(1, Outcome::Created { existed: false, .. })]),
        "{replies:?}"
    );
    // The order does not confirm the next one.
    node.send(
        command(Do::Append(0, None, false, 3), 0),
        NOW_MS,
        false,
        &mut shared,
    );
    let running = node.run();
    running
        .incoming
        .handle()
        .give_up(2, "no broker answers".into());
    running.turn();
    let replies = running.replies.take();
    assert!(
        matches!(&replies[..], [(1, Outcome::Refused(Refusal::Unknown(_)))]),
        "{replies:?}"
    );
    // It was stored all the same: it is applied, and nothing is sent twice.
    node.follow(&shared, usize::MAX, NOW_MS);
    assert!(node.run().replies.0.lock().is_empty());
    assert!(
        node.contents()[0]
            .1
            .as_ref()
            .unwrap()
            .contains("[97, 97, 97]")
    );
}

#[test]
fn a_node_syncs_what_it_answers_at_once_and_what_others_answer_a_little_later() {
    let mut shared = Vec::new();
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let create = command(Do::Create(0, None, None, None, 0), 0);
    a.send(create, NOW_MS, false, &mut shared);
    let (time_ms, message) = shared[0].clone();
    for (node, syncs) in [(&mut a, true), (&mut b, false)] {
        let running = node.run();
        running.take(1, time_ms, &message);
        running.turn();
        assert_eq!(*running.synced.lock(), [syncs]);
        assert_eq!(running.status.applied().position, 1);
        let marked = running.status.marked().position;
        assert_eq!(marked, u64::from(syncs), "a mark counts when it is durable");
    }
    // Readers see it already, at both.
    assert_eq!(a.contents(), b.contents());
    // The power is cut before the sync: what is lost comes again from the order.
    b.running = None;
    b.disk.cut_power();
    b.start();
    b.follow(&shared, usize::MAX, NOW_MS);
    assert_eq!(a.contents(), b.contents());
    // Nothing follows, so that it is synced.
    b.run().turn();
    assert_eq!(b.run().status.marked().position, 1);
    b.running = None;
    b.disk.cut_power();
    b.start();
    assert_eq!(b.run().incoming.position(), 1);
}

#[test]
fn the_repetition_of_an_append_is_answered_when_the_append_is_durable() {
    let mut shared = Vec::new();
    let mut a = Node::new(0, 0, false);
    let mut b = Node::new(1, 0, false);
    let append = Do::Append(0, Some((0, 0)), false, 3);
    for what in [Do::Create(0, None, None, None, 0), append.clone()] {
        a.send(command(what, 0), NOW_MS, false, &mut shared);
    }
    a.follow(&shared, usize::MAX, NOW_MS);
    // Without a turn that has nothing to do, in which it would sync.
    let deliver = |node: &mut Node, shared: &Shared| {
        let running = node.run();
        for (index, (time_ms, message)) in shared.iter().enumerate() {
            let position = index as u64 + 1;
            if position > running.incoming.position() {
                running.take(position, *time_ms, message);
                running.turn();
            }
        }
    };
    let batch = b.run().batch(command(append, 0), 1);
    deliver(&mut b, &shared);
    assert_eq!(b.run().status.marked().position, 0, "it is only written");
    shared.extend(
        batch
            .messages(MESSAGE_BYTES_MAX)
            .into_iter()
            .map(|message| (NOW_MS, message)),
    );
    deliver(&mut b, &shared);
    let replies = b.run().replies.take();
    assert!(
        matches!(
            &replies[..],
            [(
                1,
                Outcome::Appended {
                    duplicate: true,
                    ..
                }
            )]
        ),
        "{replies:?}"
    );
    assert_eq!(b.run().status.marked().position, 2);
}

#[test]
fn commands_after_a_stop_are_not_sent_and_the_outcome_of_those_before_is_unknown() {
    let mut node = Node::new(0, 0, false);
    let running = node.run();
    let create = || command(Do::Create(0, None, None, None, 3), 0);
    running.batch(create(), 1);
    let handle = running.incoming.handle();
    handle.stop("the order is lost".into());
    // The sequencer takes its turns later. The test refuses in the place of the sender.
    match running.submit(create(), 2) {
        NextOutgoing::Refused(submitters, refusal) => handle.refuse(submitters, refusal),
        NextOutgoing::Batch(batch) => panic!("sent: {batch:?}"),
    }
    for _ in 0..2 {
        running.turn();
    }
    let replies = running.replies.take();
    assert!(
        matches!(
            &replies[..],
            [
                (1, Outcome::Refused(Refusal::Unknown(_))),
                (2, Outcome::Refused(Refusal::LogFailed(_)))
            ]
        ),
        "{replies:?}"
    );
}

#[test]
fn a_command_that_is_too_large_for_the_order_is_refused_alone() {
    let mut node = Node::new(0, 0, false);
    let running = node.run();
    let submit = |running: &Running, command: Command, token| {
        let submission = Submission::new(command, Submitter { shard: 0, token });
        assert!(running.mailbox.try_send(Lane::Data, submission, 1).is_ok());
    };
    let append = |bytes| command(Do::Append(0, None, false, bytes), 0);
    for (token, bytes) in [(1, 10), (2, 1 << 20), (3, 10)] {
        submit(running, append(bytes), token);
    }
    let mut next = || running.outgoing.next_commands().unwrap();
    assert!(matches!(next(), NextOutgoing::Batch(batch) if batch.commands == 1));
    match next() {
        NextOutgoing::Refused(submitters, Refusal::TooLarge { bytes, bytes_max }) => {
            assert_eq!(submitters, [Submitter { shard: 0, token: 2 }]);
            assert!(bytes > bytes_max && bytes_max > 500_000, "{bytes_max}");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(next(), NextOutgoing::Batch(batch) if batch.commands == 1));
}

#[test]
fn no_answer_is_waited_for_that_does_not_come() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    let send = |node: &mut Node| {
        let command = command(Do::Create(0, None, None, None, 3), 0);
        node.run().batch(command, 1)
    };
    // The first batch is answered, so that the next ones are worth a wait.
    let first = send(&mut node);
    shared.extend(
        first
            .messages(MESSAGE_BYTES_MAX)
            .into_iter()
            .map(|message| (NOW_MS, message)),
    );
    std::thread::sleep(Duration::from_millis(20));
    node.follow(&shared, usize::MAX, NOW_MS);
    for _ in 0..3 {
        let number = send(&mut node).batch.at.number;
        let running = node.run();
        running
            .incoming
            .handle()
            .give_up(number, "no broker".into());
        running.turn();
        assert_eq!(running.outgoing.unanswered(), 0, "it is forgotten");
    }
}

#[test]
fn a_batch_that_no_node_applies_any_more_is_answered() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    let create = || command(Do::Create(0, None, None, None, 3), 0);
    let lost = node.batch(create(), NOW_MS, &shared);
    node.send(create(), NOW_MS, false, &mut shared);
    shared.extend(
        lost.messages(MESSAGE_BYTES_MAX)
            .into_iter()
            .map(|message| (NOW_MS, message)),
    );
    node.follow(&shared, usize::MAX, NOW_MS);
    let replies = node.run().replies.take();
    let outcomes: Vec<_> = replies.iter().map(|(_, outcome)| outcome).collect();
    assert!(
        matches!(
            outcomes[..],
            [
                Outcome::Created { .. },
                Outcome::Refused(Refusal::Unknown(_))
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!(node.run().outgoing.unanswered(), 0);
}

#[test]
fn the_clients_of_a_node_whose_disk_is_full_do_not_wait_for_it() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    let append = || command(Do::Append(0, None, false, 3_000), 0);
    let create = command(Do::Create(0, None, None, None, 3), 0);
    node.send(create, NOW_MS, false, &mut shared);
    // The first batch fills the segment, and there is no room for another one.
    node.send(append(), NOW_MS, false, &mut shared);
    node.follow(&shared, usize::MAX, NOW_MS);
    let disk = node.disk.clone();
    disk.set_capacity(disk.used_bytes());
    let first = node.batch(append(), NOW_MS, &shared);
    node.run().replies.0.lock().clear();
    let mut running = node.running.take().unwrap();
    let (replies, status) = (running.replies.clone(), Arc::clone(&running.status));
    let take = |running: &mut Running, batch: OutgoingBatch| {
        for message in batch.messages(MESSAGE_BYTES_MAX) {
            running.take(running.incoming.position() + 1, NOW_MS, &message);
        }
    };
    take(&mut running, first);
    // This one waits behind it.
    let second = running.batch(append(), 2);
    let mut running = std::thread::scope(|scope| {
        let stalled = scope.spawn(move || {
            running.turn();
            running
        });
        let begin = std::time::Instant::now();
        while replies.0.lock().len() < 2 {
            assert!(begin.elapsed() < Duration::from_secs(60), "they still wait");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(status.trouble().is_some());
        disk.set_capacity(u64::MAX);
        stalled.join().unwrap()
    });
    take(&mut running, second);
    running.turn();
    assert_eq!(running.status.trouble(), None);
    let tip = running.status.applied();
    assert_eq!(
        tip.position,
        running.incoming.position(),
        "both are applied"
    );
    let mut replies = replies.take();
    replies.sort_by_key(|(token, _)| *token);
    assert!(
        matches!(
            &replies[..],
            [
                (1, Outcome::Refused(Refusal::Unknown(_))),
                (2, Outcome::Refused(Refusal::Unknown(_)))
            ]
        ),
        "{replies:?}"
    );
}

#[test]
fn directories_of_nodes_and_of_single_servers_are_told_apart() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    node.send(
        command(Do::Create(0, None, None, None, 3), 0),
        NOW_MS,
        false,
        &mut shared,
    );
    node.follow(&shared, usize::MAX, NOW_MS);
    node.running = None;
    let open = |disk: &SimulatedDisk, order| {
        let opened = restore_all_on(
            vec![disk.clone()],
            order,
            &options(),
            Limits::default(),
            SteadyTime::from_ms(1),
        );
        opened.map(drop).map_err(|error| error.to_string())
    };
    let error = open(&node.disk, OrderKind::Local).unwrap_err();
    assert!(error.contains("start it with --fleet"), "{error}");
    let disk = SimulatedDisk::new(9);
    let restored = crate::restore_on(
        disk.clone(),
        options(),
        Limits::default(),
        SteadyTime::from_ms(1),
    );
    let (mut machine, _, mut log) = restored.unwrap();
    let mut journal = crate::LogJournal {
        log: &mut log,
        now: WallTime::from_ms(1),
    };
    machine.apply(
        command(Do::Create(0, None, None, None, 3), 0),
        Now::from_ms(1),
        &mut journal,
    );
    log.write().unwrap();
    log.sync().unwrap();
    drop((machine, log));
    let error = open(&disk, OrderKind::Replicated).unwrap_err();
    assert!(error.contains("empty directory"), "{error}");
}

#[test]
fn steps_of_a_nodes_own_clock_end_no_stream_and_keep_none() {
    let mut node = Node::new(0, 0, false);
    let mut shared = Shared::new();
    let lifetime = Lifetime::Sliding { ttl_s: 5 };
    let create = command(Do::Create(0, Some(lifetime), None, None, 3), 0);
    node.send(create, NOW_MS, false, &mut shared);
    node.follow(&shared, usize::MAX, NOW_MS);
    let mut proposes = |steady_ms, wall_ms| {
        let running = node.run();
        let now = Now {
            steady: SteadyTime::from_ms(steady_ms),
            wall: WallTime::from_ms(wall_ms),
        };
        running.sequencer.turn(Duration::ZERO, &|| now);
        running.outgoing.take_proposals()
    };
    for wall_ms in [0, NOW_MS + 3_600_000] {
        let proposed = proposes(NOW_MS + 4_999, wall_ms);
        assert!(proposed.is_empty(), "{proposed:?}");
    }
    let proposed = proposes(NOW_MS + 5_000, 0);
    assert!(
        matches!(&proposed[..], [FleetCommand::End { .. }]),
        "{proposed:?}"
    );
}

/// What a node proposes at a time.
fn proposals(node: &mut Node, now_ms: u64) -> Vec<FleetCommand> {
    let running = node.run();
    let now = Now::from_ms(now_ms);
    running.sequencer.turn(Duration::ZERO, &|| now);
    running.outgoing.take_proposals()
}

/// The only thing that it proposes at a time, a moment after its last proposals.
fn proposal(node: &mut Node, now_ms: u64) -> FleetCommand {
    let begin = std::time::Instant::now();
    loop {
        let mut proposed = proposals(node, now_ms);
        if let Some(first) = proposed.pop() {
            assert!(proposed.is_empty(), "{proposed:?} and {first:?}");
            return first;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_node_with_live_readers_renews_a_stream_before_another_ends_it() {
    for by_pattern in [false, true] {
        let mut shared = Shared::new();
        let mut reading = Node::new(0, 0, false);
        let mut other = Node::new(1, 0, false);
        let lifetime = Lifetime::Sliding { ttl_s: 4 };
        let create = command(Do::Create(0, Some(lifetime), None, None, 3), 0);
        reading.send(create, NOW_MS, false, &mut shared);
        for node in [&mut reading, &mut other] {
            node.follow(&shared, usize::MAX, NOW_MS);
        }
        let view = Arc::clone(reading.run().views.log(0));
        let stream = view.find(NAMES[0]).unwrap();
        let pattern = by_pattern.then(|| view.watch_pattern(&"*".parse().unwrap(), 0, 0));
        if !by_pattern {
            view.watch(&stream, 0);
        }
        assert!(proposals(&mut reading, NOW_MS + 1_999).is_empty());
        let mut now_ms = NOW_MS;
        for _ in 0..3 {
            // Between half of the lifetime and its last quarter.
            let renewal = proposal(&mut reading, now_ms + 2_250);
            assert!(matches!(renewal, FleetCommand::Renew { .. }), "{renewal:?}");
            now_ms += 3_999;
            reading.send(Command::Fleet(renewal), now_ms, false, &mut shared);
            for node in [&mut reading, &mut other] {
                node.follow(&shared, usize::MAX, now_ms);
                assert!(node.contents()[0].1.is_some());
            }
        }
        // The last reader leaves: nothing renews the stream, and all nodes want to end it.
        match pattern {
            Some(no) => view.unwatch_pattern(no, 0),
            None => view.unwatch(stream.no, 0),
        }
        for node in [&mut reading, &mut other] {
            node.run().outgoing.take_proposals();
            let end = proposal(node, now_ms + 4_000);
            assert!(matches!(end, FleetCommand::End { .. }), "{end:?}");
        }
    }
}

#[test]
fn a_silent_producer_is_noticed_by_every_node_and_closes_its_stream_once() {
    let mut shared = Shared::new();
    let mut nodes = [Node::new(0, 0, false), Node::new(1, 0, false)];
    let mut create = Create::new(NAMES[0]);
    create.extras.producer_timeout_s = Some(5);
    nodes[0].send(Command::Create(create), NOW_MS, false, &mut shared);
    let append = command(Do::Append(0, None, false, 3), 1);
    nodes[1].send(append, NOW_MS + 3_000, false, &mut shared);
    for node in &mut nodes {
        node.follow(&shared, usize::MAX, NOW_MS + 3_000);
        assert!(proposals(node, NOW_MS + 7_999).is_empty());
    }
    // The node that was started again knows as well when something was appended.
    nodes[1].restart();
    for node in &mut nodes {
        let proposed = proposal(node, NOW_MS + 8_000);
        assert!(
            matches!(proposed, FleetCommand::Abandon { .. }),
            "{proposed:?}"
        );
        node.send(Command::Fleet(proposed), NOW_MS + 8_000, false, &mut shared);
    }
    let end = |node: &mut Node| node.run().views.find(NAMES[0]).unwrap().facts().end;
    for node in &mut nodes {
        node.follow(&shared, usize::MAX, NOW_MS + 8_000);
        assert_eq!(end(node), Some(EndReason::Abandoned));
        let mut more = proposals(node, NOW_MS + 60_000);
        more.retain(|more| !matches!(more, FleetCommand::Barrier { .. }));
        assert!(more.is_empty(), "{more:?}");
    }
    assert_eq!(nodes[0].records(), nodes[1].records());
    // Its end is in the log.
    nodes[0].restart();
    assert_eq!(end(&mut nodes[0]), Some(EndReason::Abandoned));
}
