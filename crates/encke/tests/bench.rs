//! `encke bench` as people run it: the real binary, at a size that takes moments.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn encke(folder: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_encke"))
        .args(line.split(' '))
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs it and gives the report; what is left in the folder is only what was asked for.
fn report(folder: &Path, line: &str) -> Value {
    let output = encke(folder, line);
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
    let report = report(folder.path(), "bench all --size 0.002 --out out --json");
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
            "pool.svg",
            "report.json"
        ]
    );
    let page = std::fs::read_to_string(out.join("index.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), 5);
    let written = std::fs::read_to_string(out.join("report.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), report);
}

#[test]
fn deliveries_are_counted_beside_what_they_cost() {
    let folder = tempfile::tempdir().unwrap();
    for (name, runs) in [("fanout", 3), ("spread", 6)] {
        let report = report(
            folder.path(),
            &format!("bench {name} --size 0.01 --seconds 1 --json"),
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
    let report = report(folder.path(), "bench streams --size 0.0002 --json");
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

#[test]
fn syncs_can_be_made_slow_or_it_is_said_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let report = report(folder.path(), "bench fsync --size 0.05 --json");
    let figures = &report["experiments"][0]["figures"];
    let trials = figures["trials"].as_array().unwrap();
    let slow = trials
        .iter()
        .find(|t| t["disk"] == "slow" && t["level"] == "synced");
    match slow {
        None => assert!(figures["no_slow_disk"].is_string()),
        Some(slow) => {
            let during = &slow["phases"][1];
            assert!(during["sync_us"].as_f64().unwrap() >= 15_000.0, "{during}");
            assert!(
                during["delivery"]["p50_us"].as_f64().unwrap() >= 15_000.0,
                "{during}"
            );
            assert!(
                during["records_per_batch"].as_f64().unwrap() > 1.0,
                "{during}"
            );
        }
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_plot_is_for_one_experiment() {
    let folder = tempfile::tempdir().unwrap();
    let output = encke(folder.path(), "bench backlog --size 0.001 --plot plot.svg");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(
        shown.contains("2005-2013") && shown.contains("what must hold"),
        "{shown}"
    );
    let plot = std::fs::read_to_string(folder.path().join("plot.svg")).unwrap();
    assert!(plot.starts_with("<svg") && plot.contains("Encke"));

    let refused = encke(folder.path(), "bench all --plot plot.svg");
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--out"));
    for wrong in [
        "bench",
        "bench nothing",
        "bench log --size 0",
        "bench log --data not/there/x",
    ] {
        let output = encke(folder.path(), wrong);
        assert!(!output.status.success(), "{wrong}");
        assert!(!output.stderr.is_empty(), "{wrong}");
    }
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_encke"))
        .args(["bench", "fsync", "--size", "1"])
        .current_dir(folder.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Its directory is there as soon as it has begun.
    while names(folder.path()).is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(names(folder.path()), [""; 0]);
}
