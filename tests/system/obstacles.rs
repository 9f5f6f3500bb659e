//! What keeps a server from starting: `serve --check`, `doctor` and a start agree.

use crate::disk::SmallDisk;
use crate::rig::{Authority, Encke, Ended, command, data_dir, without_settings};

fn run(arguments: &[&str]) -> Ended {
    Ended::of(&mut command(arguments))
}

/// What keeps a server from starting is found by `--check` and by `doctor`, which agree.
#[test]
fn checks_find_what_keeps_a_server_from_starting() {
    let encke = Encke::start(&[]);
    let listen = encke.address.to_string();
    let data = data_dir();
    let directory = data.path().to_str().expect("it is text");
    let elsewhere = ["--listen", &listen, "--data", directory];
    let refused = run(&[&["serve"], &elsewhere[..]].concat());
    assert_eq!(refused.code, Some(4));
    assert_eq!(
        refused.stderr.matches("Address already in use").count(),
        1,
        "{refused:?}"
    );
    let checked = run(&[&["serve", "--check"], &elsewhere[..]].concat());
    assert_eq!(checked.code, Some(4));
    let obstacle =
        format!("# The server would not start: can't listen on {listen}: Address already in use");
    assert!(checked.stdout.contains(&obstacle), "{checked:?}");
    let doctor = run(&[&["doctor", "-n", "1"], &elsewhere[..]].concat());
    assert_eq!(doctor.code, Some(5));
    assert!(
        doctor.stdout.contains("Address already in use"),
        "{doctor:?}"
    );
    assert!(
        doctor.stdout.ends_with("\nThe server would not start.\n"),
        "{doctor:?}"
    );

    let encke = Encke::start_in(data.path(), &[]);
    let same_data = ["--listen", "0", "--data", directory];
    let checked = run(&[&["serve", "--check"], &same_data[..]].concat());
    assert_eq!(checked.code, Some(3));
    assert!(checked.stdout.contains("in use"), "{checked:?}");
    let doctor = run(&[&["doctor", "-n", "1"], &same_data[..]].concat());
    assert_eq!(doctor.code, Some(5));
    assert!(doctor.stdout.contains("in use"), "{doctor:?}");
    encke.terminate();
    let checked = run(&[&["serve", "--check"], &same_data[..]].concat());
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

/// The address for operators and the redirect are listened on, too, and a message names the flag of the address.
#[test]
fn every_address_that_is_taken_is_found_with_its_flag() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let taken = taken.local_addr().expect("it listens").to_string();
    let directory = data_dir();
    let authority = Authority::new();
    let certificate = authority.issue("localhost");
    let data = directory.path().join("data").display().to_string();
    let tls = certificate.flags();
    for (flag, example) in [
        ("--admin-listen", "--admin-listen 5239"),
        ("--redirect-http", "--redirect-http 0.0.0.0:8080"),
    ] {
        let flags = [&["--listen", "0", "--data", &data, flag, &taken], &tls[..]].concat();
        let why = format!(
            "can't listen on {taken}: Address already in use (os error 98): choose another port, such as {example}, or stop"
        );
        all_refuse(4, &why, &|words| run(&[words, &flags].concat()));
    }
}

#[test]
fn a_current_directory_that_is_gone_is_named() {
    let directory = data_dir();
    let gone = directory.path().join("gone");
    std::fs::create_dir(&gone).expect("the parent is there");
    let data = data_dir();
    let encke = command(&["serve", "--listen", "0", "--data"]);
    let mut shell = std::process::Command::new("sh");
    // The shell removes the directory that it is in, and becomes the server.
    shell
        .args(["-c", "rmdir \"$PWD\" && exec \"$@\"", "sh"])
        .arg(encke.get_program())
        .args(encke.get_args())
        .arg(data.path())
        .current_dir(&gone);
    let ended = Ended::of(&mut shell);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let named = "the current directory can't be used: No such file or directory";
    assert!(ended.stderr.contains(named), "{ended:?}");
}

#[test]
fn a_check_and_doctor_agree_with_a_start() {
    let directory = data_dir();
    let at = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(at("file"), b"").expect("it can be written");
    let config = at("encke.toml");
    let text = format!("[tuning]\naccess-log-file = '{}/none/access.log'\n", at(""));
    std::fs::write(&config, text).expect("it can be written");
    let audit = format!("audit-log-file={}/none/audit.log", at(""));
    let not_writable = "/proc/self/encke-data";
    for (flags, code, why) in [
        (&["--data", &at("file")][..], 3, "is not a directory"),
        (&["--data", not_writable], 3, "/proc/self/encke-data"),
        (
            &["--data", &at("new"), "--config", &config],
            2,
            "access.log can't be opened",
        ),
        (
            &["--data", &at("new"), "--tuning", &audit],
            2,
            "audit.log can't be opened",
        ),
    ] {
        let flags = [&["--listen", "0"], flags].concat();
        all_refuse(code, why, &|words| run(&[words, &flags].concat()));
    }
    // What is wrong in the settings themselves.
    for (flag, value) in [("--listen", "0.0.0.0:0"), ("--tuning", "head-max=1B")] {
        let answers = [&["serve"][..], &["serve", "--check"], &["doctor"]]
            .map(|words| run(&[words, &[flag, value]].concat()));
        for answer in &answers {
            assert_eq!(answer.code, Some(2), "{answer:?}");
            assert_eq!(answer.stderr, answers[0].stderr);
        }
    }
    for words in [&["doctor"][..], &["log", "check", "."]] {
        let ended = Ended::of(command(words).env("ENCKE_LISEN", "0"));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("ENCKE_LISTEN"), "{ended:?}");
    }
}

#[test]
fn a_new_log_needs_room_for_its_first_segment() {
    let Some(disk) = SmallDisk::of("3m") else {
        return;
    };
    let data = disk.at.path().join("data");
    let data = data.to_str().expect("it is text");
    let run = |words: &[&str]| {
        let settings = ["--segment", "1MiB", "--body-max", "256KiB", "--listen", "0"];
        let command = command(&[words, &["--data", data], &settings].concat());
        Ended::of(&mut disk.enter(&command))
    };
    let filler = disk.path("filler");
    std::fs::write(&filler, vec![1; 5 << 19]).expect("there is room for it");
    all_refuse(3, "/data", &run);
    let checked = run(&["serve", "--check"]);
    let why = "of free space, and the first segments of the logs on this file system need 1.0 MiB";
    assert!(checked.stdout.contains(why), "{checked:?}");
    std::fs::write(&filler, vec![1; 3 << 19]).expect("there is room for it");
    for words in [&["serve", "--check"][..], &["doctor", "-n", "1"]] {
        let fits = run(words);
        assert_eq!(fits.code, Some(0), "{fits:?}");
    }
}

/// A process that may not make a file as large as a segment would end by a signal, without a word.
#[test]
fn a_limit_on_the_size_of_files_is_named() {
    let data = data_dir();
    let data = data.path().to_str().expect("it is text");
    let limited = |words: &[&str]| {
        let encke = command(&[words, &["--data", data, "--listen", "0"]].concat());
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", "ulimit -f 2048 && exec \"$@\"", "sh"])
            .arg(encke.get_program())
            .args(encke.get_args());
        without_settings(&mut shell);
        Ended::of(&mut shell)
    };
    all_refuse(3, "raise the limit on the size of files", &limited);
    let refused = limited(&["serve"]);
    assert!(
        refused
            .stderr
            .contains("a file may have 1.0 MiB, and a segment has 64.0 MiB"),
        "{refused:?}"
    );
    let fits = limited(&[
        "serve",
        "--check",
        "--segment",
        "1MiB",
        "--body-max",
        "256KiB",
    ]);
    assert_eq!(fits.code, Some(0), "{fits:?}");
}

/// `serve --check` and `doctor` find what keeps a server from starting, and say the same; `serve` does not start.
fn all_refuse(code: i32, why: &str, run: &dyn Fn(&[&str]) -> Ended) {
    let checked = run(&["serve", "--check"]);
    assert_eq!(checked.code, Some(code), "{checked:?}");
    let obstacle = checked
        .stdout
        .lines()
        .find(|line| line.starts_with("# The server would not start: "));
    assert!(
        obstacle.is_some_and(|obstacle| obstacle.contains(why)),
        "{checked:?}"
    );
    let doctor = run(&["doctor", "-n", "1"]);
    assert_eq!(doctor.code, Some(5), "{doctor:?}");
    assert!(doctor.stdout.contains(why), "{doctor:?}");
    assert!(
        doctor.stdout.ends_with("\nThe server would not start.\n"),
        "{doctor:?}"
    );
    let refused = run(&["serve"]);
    assert_eq!(refused.code, Some(code), "{refused:?}");
}
