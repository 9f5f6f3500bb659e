//! `encke-bench experiment` and `encke-bench report` as processes, at a small size.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod encke;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The program, with a server of the same source.
fn bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_encke-bench"));
    command.env("ENCKE_BIN", encke::program());
    command
}

fn run(folder: &Path, line: &str) -> Output {
    let mut command = bench();
    command.args(line.split(' ')).current_dir(folder);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it and gives the report; what is left in the folder is only what was asked for.
fn report(folder: &Path, line: &str) -> Value {
    let output = run(folder, line);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{line}: {errors}");
    serde_json::from_str(&text(&output.stdout)).unwrap_or_else(|e| panic!("{line}: {e}\n{errors}"))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn all_five_make_one_report() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "report --size 0.002 --out out --json");
    let experiments = report["experiments"].as_array().unwrap();
    let all: Vec<_> = experiments
        .iter()
        .map(|e| e["name"].as_str().unwrap())
        .collect();
    assert_eq!(all, ["log", "fsync", "flood", "backlog", "pool"]);
    for experiment in experiments {
        let targets = experiment["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{}", experiment["name"]);
        for target in targets {
            let promise = target["promise"].as_bool().unwrap();
            assert!(!promise || target["met"].as_bool().unwrap(), "{target}");
        }
        assert!(!experiment["tables"].as_array().unwrap().is_empty());
    }
    let runs = experiments[2]["figures"]["runs"].as_array().unwrap();
    let opened: Vec<_> = runs
        .iter()
        .map(|run| run["flood"]["opening"]["opened"].as_u64().unwrap())
        .collect();
    assert_eq!(opened, [20, 2_000]);
    for run in runs {
        assert!(run["flood"]["deliveries"]["messages"].as_u64().unwrap() > 0);
        let endurance = &run["flood"]["endurance"];
        assert!(endurance["hang_ups"]["made"].as_u64().unwrap() > 0);
        assert_eq!(
            endurance["descriptors_before"]["sockets"],
            endurance["descriptors_closed"]["sockets"]
        );
    }

    assert_eq!(names(folder.path()), ["out"], "nothing else is left");
    let out = folder.path().join("out");
    assert_eq!(
        names(&out),
        [
            "README.md",
            "backlog.svg",
            "flood.svg",
            "fsync.svg",
            "index.html",
            "log.svg",
            "pool.svg"
        ]
    );
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 5);
}

#[test]
fn deliveries_are_counted_beside_what_they_cost() {
    let folder = tempfile::tempdir().unwrap();
    for (name, runs) in [("fanout", 3), ("spread", 6)] {
        let report = report(
            folder.path(),
            &format!("experiment {name} --size 0.01 --duration 1s --json"),
        );
        let experiment = &report["experiments"][0];
        for target in experiment["targets"].as_array().unwrap() {
            let promise = target["promise"].as_bool().unwrap();
            assert!(!promise || target["met"].as_bool().unwrap(), "{target}");
        }
        let found = experiment["figures"]["runs"].as_array().unwrap();
        assert_eq!(found.len(), runs, "{name}");
        for run in found {
            let flood = run.get("flood").unwrap_or(run);
            let asked = &flood["publishing"]["rate_asked"];
            // Only the runs at 20 and at 1,000 a second can be compared with bare sends.
            let compared = name == "fanout" && asked.is_number();
            assert_eq!(flood["floor"]["sends"].is_u64(), compared, "{name}");
            let sent = flood["publishing"]["acknowledged"].as_u64().unwrap();
            let subscribers = match name {
                "fanout" => flood["opening"]["opened"].as_u64().unwrap(),
                _ => 1,
            };
            assert_eq!(flood["deliveries"]["messages"], sent * subscribers);
            assert!(flood["server"]["cpu_per_delivery_us"].is_number(), "{name}");
        }
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn streams_are_all_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "experiment streams --size 0.0002 --json");
    let experiment = &report["experiments"][0];
    let promises = experiment["targets"].as_array().unwrap().iter();
    let kept: Vec<_> = promises
        .filter(|target| target["promise"] == true)
        .map(|target| target["met"].as_bool().unwrap())
        .collect();
    assert_eq!(kept, [true]);
    let rounds = experiment["figures"]["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    for (round, records) in rounds.iter().zip([2_000, 4_000]) {
        assert_eq!(round["acknowledged"], 2_000);
        // So few streams are read that it is all of them.
        assert_eq!(round["cold"]["count"], 200);
        assert_eq!(round["read"], records);
        assert!(round["opened_bytes"].as_u64().unwrap() > 0);
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

/// Whether there are brokers here.
fn has_brokers() -> bool {
    let broker = std::env::var_os("NATS_SERVER").unwrap_or_else(|| "nats-server".into());
    let version = Command::new(broker).arg("--version").output();
    if version.is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(
        std::env::var_os("CI").is_none(),
        "nats-server does not work here, and CI is set"
    );
    eprintln!("SKIPPED: nats-server does not work here");
    false
}

#[test]
fn a_fleet_keeps_its_promises_when_a_node_is_killed() {
    if !has_brokers() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "experiment fleet --size 0.01 --json");
    let experiment = &report["experiments"][0];
    for target in experiment["targets"].as_array().unwrap() {
        let promise = target["promise"].as_bool().unwrap();
        assert!(!promise || target["met"].as_bool().unwrap(), "{target}");
    }
    let figures = &experiment["figures"];
    assert_eq!(figures["appends"].as_array().unwrap().len(), 2);
    for round in figures["appends"].as_array().unwrap() {
        for server in ["alone", "fleet"] {
            assert!(round[server]["acknowledged"].as_u64() > Some(0), "{round}");
        }
    }
    let kill = &figures["kills"][0];
    assert_eq!(
        (kill["subscribers"].as_u64(), kill["lost"].as_u64()),
        (Some(60), Some(60))
    );
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn connections_to_several_nodes_get_what_is_for_them() {
    let folder = tempfile::tempdir().unwrap();
    let check = |line: &str, nodes: u64| {
        let report = report(folder.path(), line);
        assert_eq!(report["nodes"].as_u64(), Some(nodes), "{report:#}");
        assert_eq!(report["open"], 40, "{report:#}");
        assert_eq!(
            (&report["one"]["received"], &report["one"]["again"]),
            (&1.into(), &0.into())
        );
        assert_eq!(
            (&report["all"]["received"], &report["all"]["again"]),
            (&40.into(), &0.into())
        );
        assert_eq!(report["all"]["latency"]["count"], 40);
        assert_eq!(report["strays"], 0);
        assert_eq!(names(folder.path()), [""; 0]);
    };
    check("million -n 40 --alone --json", 1);
    if has_brokers() {
        check("million -n 40 --per-node 15 --json", 3);
    }
    for (wrong, code, message) in [
        (
            "million -n 40 --alone --per-node 20",
            2,
            "one server holds 20 connections here, not 40",
        ),
        ("million -n 4000000 --per-node 1", 2, "need 4000000 nodes"),
        (
            "million -n 40 --broker not/there",
            1,
            "cannot start not/there",
        ),
    ] {
        let output = run(folder.path(), wrong);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{wrong}: {errors}");
        assert!(errors.contains(message), "{wrong}: {errors}");
        assert_eq!(names(folder.path()), [""; 0]);
    }
}

#[test]
fn a_run_without_time_opens_nothing_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(
        folder.path(),
        "million -n 40 --alone --json --time-limit 0s",
    );
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    let stopped = report["stopped"].as_str().unwrap();
    assert_eq!(stopped, "the time limit of 0 s was reached");
    assert_eq!(
        (&report["open"], &report["all"]["wanted"]),
        (&0.into(), &0.into())
    );
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn syncs_can_be_made_slow_or_it_is_said_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "experiment fsync --size 0.05 --json");
    let figures = &report["experiments"][0]["figures"];
    for comparison in figures["comparisons"].as_array().unwrap() {
        let synced = comparison["level"] == "synced";
        let sides = comparison["sides"].as_array().unwrap();
        for trial in sides
            .iter()
            .flat_map(|side| side["trials"].as_array().unwrap())
        {
            assert_eq!(trial["published"], trial["delivered"], "{trial}");
            assert!(trial["published"].as_u64().unwrap() > 0);
            assert!(trial["load_per_second"].as_f64().unwrap() > 0.0);
            for phase in [&trial["before"], &trial["during"]] {
                for probe in ["ping", "delivery"] {
                    assert!(
                        phase[probe]["all"]["count"].as_u64().unwrap() > 0,
                        "{phase}"
                    );
                }
                // No batch waits for a sync at the level `accepted`.
                assert_eq!(phase["sync_us"].is_f64(), synced, "{phase}");
                assert_eq!(phase["syncs_per_second"].as_f64() > Some(0.0), synced);
                // How much the load adds depends on what else the machine does.
                assert!(phase["records_per_second"].as_f64() > Some(0.0), "{phase}");
                assert!(
                    phase["shards"]["run_percent"].as_f64() > Some(0.0),
                    "{phase}"
                );
            }
        }
        if synced && comparison["disk"] == "slow" {
            let during = &sides[0]["trials"][0]["during"];
            let delivery = during["delivery"]["all"]["p50_us"].as_f64().unwrap();
            assert!(during["sync_us"].as_f64().unwrap() >= 15_000.0, "{during}");
            assert!(delivery >= 15_000.0, "{during}");
            assert!(
                during["records_per_batch"].as_f64().unwrap() > 1.0,
                "{during}"
            );
        }
    }
    let all = 2 * (2 - usize::from(figures["no_slow_disk"].is_string()));
    assert_eq!(figures["comparisons"].as_array().unwrap().len(), all);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn an_experiment_has_a_page_and_a_plot() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), "experiment backlog --size 0.001 --out out");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("2005-2013") && shown.contains("target"),
        "{shown}"
    );
    let out = folder.path().join("out");
    assert_eq!(names(&out), ["backlog.html", "backlog.svg"]);
    let plot = std::fs::read_to_string(out.join("backlog.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("Encke"));

    for (wrong, code) in [
        ("experiment", 2),
        ("experiment nothing", 2),
        ("experiment log --size 0", 2),
        ("experiment log --data not/there/x", 1),
        ("experiment spread --size 0.001 --encke not/there", 1),
    ] {
        let output = run(folder.path(), wrong);
        assert_eq!(output.status.code(), Some(code), "{wrong}");
        assert!(!output.stderr.is_empty(), "{wrong}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = bench()
        .args(["experiment", "fsync", "--size", "1"])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // In the middle of the run: a server has a directory in that of the run.
    let begun = || {
        let runs = names(folder.path());
        runs.first()
            .is_some_and(|run| folder.path().join(run).join("Own-synced").exists())
    };
    while !begun() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(names(folder.path()), [""; 0]);
}
