//! An import that is killed, and one whose destination is.

use serde_json::Value;

use super::importer::{Importer, contents};
use crate::faulty_server::{FaultyServer, Manners};
use crate::ports::fixed_port;
use crate::rig::{Encke, data_dir, eventually, path, serve_on};

#[test]
#[ignore = "long: make test-all"]
fn killed_imports_and_a_killed_destination_lose_and_double_nothing() {
    let manners = Manners {
        seed: 5,
        faults_of_100: 12,
        page_records: 3,
    };
    let source = FaultyServer::start(manners);
    source.create("json", "application/json");
    source.create("bytes", "application/x-any");
    for number in 0..150_u32 {
        let size = if number % 50 == 9 {
            1_200_000
        } else {
            1 + number as usize
        };
        let message = format!("{{\"n\":{number},\"x\":\"{}\"}}", "y".repeat(size));
        source.append(
            "json",
            vec![message.into_bytes(), format!("[[{number}]]").into_bytes()],
        );
        source.append(
            "bytes",
            vec![
                (0..size)
                    .map(|at| (at as u32 * number % 253) as u8)
                    .collect(),
            ],
        );
    }
    source.change("bytes", |held| held.closed = true);

    let data = data_dir();
    let listen = format!("127.0.0.1:{}", fixed_port());
    let start = || Encke::start_by(&mut serve_on(&listen, data.path(), &[]));
    let mut destination = start();
    let importer = Importer::new(source.url(), &destination);
    let names = ["json", "bytes", "--quiet"];
    let lines =
        || importer.journal("json").lines().count() + importer.journal("bytes").lines().count();
    // Each run gets on before it is killed, or has ended by itself.
    for round in 0..10_usize {
        let before = lines();
        let mut running = importer.start(&names);
        let mut has_ended = false;
        eventually("the import has copied something", || {
            has_ended = running.child.try_wait().expect("it is ours").is_some();
            has_ended || lines() > before + round
        });
        if round == 4 {
            // The import goes on with the same destination.
            destination.kill();
            destination = start();
            let before = lines();
            eventually("the import goes on", || {
                has_ended = running.child.try_wait().expect("it is ours").is_some();
                has_ended || lines() > before
            });
        }
        drop(running);
    }
    let report = importer.run(&["json", "bytes", "--verify"]);
    assert_eq!(report["complete"], true, "{report}");

    for name in ["json", "bytes"] {
        let held = source.held(name).expect("it was made");
        assert!(
            held.contents() == contents(&destination, name, "-1"),
            "{name} differs"
        );
        let map = importer.map(name);
        assert!(map.len() > 20, "{map:?}");
        let all = held.contents();
        let units = |bytes: &[u8]| match name {
            "json" => serde_json::from_slice::<Vec<Value>>(bytes)
                .expect("an array")
                .len(),
            _ => bytes.len(),
        };
        for (offset, mapped) in &map {
            let left = units(&contents(&destination, name, mapped));
            let wanted = units(&all) - units(&held.before(offset));
            assert_eq!(left, wanted, "{name}: {offset} is not {mapped}");
        }
        let (offset, mapped) = &map[map.len() / 2];
        let asked = importer.offset(&[name, offset]);
        assert_eq!(
            (asked.code, asked.stdout.trim()),
            (Some(0), mapped.as_str()),
            "{asked:?}"
        );
    }
    let head = destination.ask("HEAD", &path("bytes"), &[], b"");
    assert_eq!(head.field("Stream-Closed"), Some("true"));
}
