//! Two releases in one fleet: nodes are upgraded one after the other, while clients append and follow.
//!
//! `make rolling` builds the second release and runs this.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fleet::{command as node_command, have_the_same};
use crate::rig::{Brokers, Encke, Ended, JSON, command, data_dir, path};

/// The same command with another program.
fn by(program: &Path, command: &Command) -> Command {
    let mut other = Command::new(program);
    other.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

#[test]
#[ignore = "needs a build of another release: make rolling"]
fn nodes_of_two_releases_are_one_fleet() {
    let next = std::env::var_os("ENCKE_NEXT").expect("make rolling sets ENCKE_NEXT");
    let next = Path::new(&next);
    let brokers = Brokers::start(1).expect("the tests' Python packages have a broker");
    let dirs = [data_dir(), data_dir(), data_dir()];
    let names = ["a", "b", "c"];
    let start = |number: usize, program: Option<&Path>| {
        let command = node_command(&brokers, names[number], dirs[number].path(), &[]);
        match program {
            None => Encke::start_by(&mut { command }),
            Some(program) => Encke::start_by(&mut by(program, &command)),
        }
    };
    let mut nodes: Vec<Encke> = (0..3).map(|number| start(number, None)).collect();
    nodes[0].create("s");
    let mut appended = 0;
    let mut append_everywhere = |nodes: &[Encke]| {
        for node in nodes {
            let body = appended.to_string();
            let answer = node.ask("POST", &path("s"), &[JSON], body.as_bytes());
            assert_eq!(answer.status, 204, "{answer:?}");
            appended += 1;
        }
        let all: Vec<_> = nodes.iter().collect();
        assert_eq!(
            have_the_same(&all, "s"),
            (0..appended).collect::<Vec<u64>>()
        );
    };
    append_everywhere(&nodes);
    // Two nodes by a restart each.
    for number in 0..2 {
        let old = nodes.remove(number);
        assert_eq!(old.terminate().code, Some(0));
        nodes.insert(number, start(number, Some(next)));
        append_everywhere(&nodes);
    }
    // One in place: what is connected stays. Its data could not be read by this release any more, which has to be allowed.
    let mut follower = nodes[2].subscribe("s", "now");
    let upgrade = |flags: &[&str]| {
        let mut upgrade = command(&["upgrade", "--json"]);
        upgrade.args(flags).arg("--program").arg(next);
        Ended::of(upgrade.arg(dirs[2].path()))
    };
    let ended = upgrade(&[]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("--one-way"), "{ended:?}");
    append_everywhere(&nodes);
    let ended = upgrade(&["--one-way"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("a report");
    assert_eq!(report["closed"], 0, "{report}");
    append_everywhere(&nodes);
    assert_eq!(follower.numbers(6).len(), 6);
    // This release refuses to take the data over, and the other one goes on.
    let ended = Ended::of(
        command(&["upgrade", "--program", env!("CARGO_BIN_EXE_encke")]).arg(dirs[2].path()),
    );
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("of states of streams"), "{ended:?}");
    append_everywhere(&nodes);
}
