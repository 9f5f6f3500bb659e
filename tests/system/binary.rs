//! The binary: settings, exit codes, signals, logs.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::{
    Connection, Encke, Ended, Fault, JSON, command, data_dir, eventually, path, request, serve,
    strace_works, wait_for_sync,
};

fn run(arguments: &[&str]) -> Ended {
    Ended::of(&mut command(arguments))
}

/// The output of `serve --check` with these flags.
fn checked(flags: &[&str]) -> toml::Table {
    let check = ["serve", "--check", "--listen", "127.0.0.1:0"];
    let ended = run(&[&check, flags].concat());
    assert_eq!(ended.code, Some(0), "{ended:?}");
    ended.stdout.parse().expect("the output is TOML")
}

#[test]
fn help_is_everywhere_and_leaves_nothing_out() {
    let top = run(&["--help"]);
    assert_eq!(top.code, Some(0), "{top:?}");
    let commands = subcommands(&top.stdout);
    assert!(commands.contains(&"serve".to_owned()), "{commands:?}");
    let mut left: Vec<Vec<String>> = commands.into_iter().map(|one| vec![one]).collect();
    while let Some(words) = left.pop() {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for flag in ["--help", "-h"] {
            let help = run(&[&words[..], &[flag]].concat());
            assert_eq!(help.code, Some(0), "{words:?}: {help:?}");
            assert!(help.stdout.contains("Usage: encke"), "{words:?}: {help:?}");
            assert!(help.stderr.is_empty(), "{words:?}: {help:?}");
            if flag == "--help" {
                for below in subcommands(&help.stdout) {
                    let mut words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
                    words.push(below);
                    left.push(words);
                }
            }
        }
    }
    let help = run(&["serve", "--help"]).stdout;
    let limits = ["--retention-age", "1h", "--retention-size", "1GiB"];
    let settings = checked(&limits);
    assert!(settings.len() > 20, "{settings:?}");
    for setting in settings.keys() {
        let variable = format!("ENCKE_{}", setting.to_uppercase().replace('-', "_"));
        for name in [format!("--{setting}"), variable] {
            assert!(
                help.split(|c: char| !(c.is_alphanumeric() || "-_".contains(c)))
                    .any(|word| word == name),
                "{name} is not in the help"
            );
        }
    }
    for (code, what) in [(0, "success"), (2, "command line"), (3, "data directory")] {
        assert!(top.stdout.contains(&format!("{code} ")) && top.stdout.contains(what));
    }
    let version = run(&["--version"]);
    let build = version
        .stdout
        .trim()
        .strip_prefix(concat!("encke ", env!("CARGO_PKG_VERSION"), " ("))
        .and_then(|rest| rest.strip_suffix(')'))
        .expect("the version, and the build in parentheses");
    // The commit, and the day.
    let day = build.rsplit(' ').next().expect("a word");
    let is_day = |(at, c): (usize, char)| match at {
        4 | 7 => c == '-',
        _ => c.is_ascii_digit(),
    };
    assert!(
        day.len() == 10 && day.chars().enumerate().all(is_day),
        "{build}"
    );
}

#[test]
fn completions_and_manual_pages_know_all_commands() {
    let names = subcommands(&run(&["--help"]).stdout);
    for shell in ["bash", "zsh", "fish"] {
        let completions = run(&["completions", shell]);
        assert_eq!(completions.code, Some(0), "{completions:?}");
        for name in names.iter().map(String::as_str).chain(["retention-age"]) {
            assert!(
                completions.stdout.contains(name),
                "{shell} does not know {name}"
            );
        }
    }
    let bash = run(&["completions", "bash"]).stdout;
    let mut check = Command::new("bash");
    let checked = check.arg("-n").arg("-c").arg(bash).status();
    assert!(checked.expect("bash is here").success());
    let folder = data_dir();
    let pages = folder.path().join("man1");
    let written = run(&["man", pages.to_str().expect("text")]);
    assert_eq!(written.code, Some(0), "{written:?}");
    for name in names.iter().filter(|name| *name != "help") {
        let page = std::fs::read_to_string(pages.join(format!("encke-{name}.1")));
        assert!(page.expect("a page").contains(".SH OPTIONS"), "{name}");
    }
    assert!(pages.join("encke.1").exists());
    let refused = run(&["completions", "sh"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("bash"), "{refused:?}");
}

#[test]
fn a_machine_without_a_client_can_ask_whether_a_server_is_ready() {
    let encke = Encke::start(&[]);
    let url = format!("http://{}", encke.address);
    for url in [url.clone(), format!("{url}/")] {
        let asked = run(&["health", &url]);
        assert_eq!((asked.code, asked.stdout.trim()), (Some(0), "ready"));
    }
    assert_eq!(encke.terminate().code, Some(0));
    let asked = run(&["health", &url]);
    assert_eq!(asked.code, Some(1));
    assert!(asked.stderr.contains("does not respond"), "{asked:?}");
}

/// The names of the commands in a help text.
fn subcommands(help: &str) -> Vec<String> {
    help.split_once("Commands:\n")
        .map_or("", |(_, rest)| rest)
        .lines()
        .take_while(|line| !line.is_empty())
        // What is further in goes on with what a command does.
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

#[test]
fn settings_that_cannot_be_are_refused() {
    let directory = data_dir();
    let config = |text: &str| {
        let file = directory.path().join("encke.toml");
        std::fs::write(&file, text).expect("it can be written");
        Ended::of(command(&["serve", "--config"]).arg(&file))
    };
    let missing = directory.path().join("missing.toml");
    let ended = Ended::of(command(&["serve", "--config"]).arg(missing));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("missing.toml"), "{}", ended.stderr);
    for (text, word) in [
        ("lisen = '127.0.0.1:0'", "similar key is listen"),
        ("no-such-key = 1", "no-such-key"),
        ("no-such-key = 1", "encke.toml"),
        ("shards = 'many'", "shards"),
        ("shards = 0", "--shards"),
        ("ring = '1 elephant'", "ring"),
        ("tuning.heartbeat = '-1s'", "tuning.heartbeat"),
        ("heartbeat = '1s'", "[tuning]"),
        ("ack = 'maybe'", "maybe"),
        ("listen = 'here'", "listen"),
        ("listen = '0.0.0.0:0'", "--open"),
        ("body-max = '1GiB'", "--body-max"),
        ("not toml at all", "encke.toml"),
    ] {
        let ended = config(text);
        assert_eq!(ended.code, Some(2), "{text}: {ended:?}");
        assert!(ended.stderr.contains(word), "{text}: {}", ended.stderr);
        assert!(ended.stdout.is_empty(), "{text}: {ended:?}");
    }
    for arguments in [
        &[][..],
        &["server"],
        &["serve", "--lisen", "127.0.0.1:0"],
        &["serve", "--listen"],
        &["serve", "--listen", "0.0.0.0:0"],
        &["serve", "--listen", "[::]:0"],
        &["serve", "--shards", "0"],
        &["serve", "--tuning", "head-max=1B"],
        &["serve", "--tuning", "head-max"],
        &["serve", "--tuning", "shards=1"],
        &["serve", "--log", "encke=["],
        &["serve", "extra"],
    ] {
        let ended = run(arguments);
        assert_eq!(ended.code, Some(2), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.is_empty(), "{arguments:?}");
    }
    let ended = Ended::of(command(&["serve"]).env("ENCKE_SHARDS", "none"));
    assert_eq!(ended.code, Some(2), "{ended:?}");
}

#[test]
fn a_flag_beats_a_variable_beats_the_file() {
    let directory = data_dir();
    let file = directory.path().join("encke.toml");
    std::fs::write(
        &file,
        "shards = 3\nring = '3MiB'\n[tuning]\nreaders = 3\npage = '3KiB'\nheartbeat = '3s'\n",
    )
    .expect("it can be written");
    let data = directory.path().join("data");
    let check = |set: &dyn Fn(&mut Command)| {
        let mut command = command(&["serve", "--check", "--data"]);
        // Another server may have the default one.
        command.arg(&data).env("ENCKE_LISTEN", "127.0.0.1:0");
        set(&mut command);
        let ended = Ended::of(&mut command);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(!data.exists(), "a check does nothing");
        ended.stdout
    };
    let all = check(&|command| {
        command.arg("--config").arg(&file);
        command.env("ENCKE_SHARDS", "4");
        command.env("ENCKE_TUNING", "readers=4,page=4KiB");
        command.args(["--shards", "5", "--tuning", "page=5KiB"]);
    });
    let file_name = format!("  # file {file:?}");
    for (value, origin) in [
        ("shards = 5", "  # flag --shards"),
        ("readers = 4", "  # environment variable ENCKE_TUNING"),
        ("page = \"5KiB\"", "  # flag --tuning"),
        ("ring = \"3MiB\"", &file_name),
        ("heartbeat = \"3s\"", &file_name),
        ("logs = 1", "  # default"),
    ] {
        let line = format!("{value}{origin}");
        assert!(all.lines().any(|shown| shown == line), "{line}: {all}");
    }
    // The output is a configuration file that says the same.
    let again = directory.path().join("again.toml");
    std::fs::write(&again, &all).expect("it can be written");
    let repeated = check(&|command| {
        command.arg("--config").arg(&again);
    });
    let table = |text: &str| text.parse::<toml::Table>().expect("the output is TOML");
    assert_eq!(table(&all), table(&repeated));
    let from_variable = check(&|command| {
        command.env("ENCKE_CONFIG", &file).env("ENCKE_SHARDS", "4");
    });
    let from_variable = table(&from_variable);
    assert_eq!(from_variable["shards"].as_integer(), Some(4));
    assert_eq!(from_variable["tuning"]["readers"].as_integer(), Some(3));
    let defaults = check(&|_| {});
    assert!(
        defaults.contains("listen = \"127.0.0.1:0\"  # environment"),
        "{defaults}"
    );
    assert!(defaults.contains("this machine only"), "{defaults}");
    assert!(defaults.contains(&data.display().to_string()), "{defaults}");
    let open = check(&|command| {
        command.args(["--open", "--listen", "0.0.0.0:0", "--admin-listen", "0"]);
    });
    let reach = "# access: every machine that reaches the address; there is no access control\n";
    assert!(open.contains(reach), "{open}");
    assert!(
        open.contains("# operators: http://127.0.0.1:0, without"),
        "{open}"
    );
    std::fs::write(&file, "[access.anonymous]\ngrants = []\n").expect("it can be written");
    let reach = [
        ("127.0.0.1:0", "this machine only"),
        ("0.0.0.0:0", "every machine that reaches the address"),
    ];
    for (listen, reach) in reach {
        let controlled = check(&|command| {
            command
                .args(["--listen", listen, "--admin-listen", "0", "--config"])
                .arg(&file);
        });
        let access = format!(
            "# access: {reach}, as the table [access] says: anonymous requests as granted\n"
        );
        assert!(controlled.contains(&access), "{controlled}");
        assert!(!controlled.contains("no access control"), "{controlled}");
    }
}

#[test]
fn what_the_file_says_is_what_the_server_does() {
    let directory = data_dir();
    let file = directory.path().join("encke.toml");
    let data = directory.path().join("data");
    let text = format!(
        "listen = '127.0.0.1:0'\ndata = {:?}\nbody-max = '1KiB'\nlog = 'warn'\n",
        data.display().to_string()
    );
    std::fs::write(&file, text).expect("it can be written");
    let encke = Encke::start_by(command(&["serve", "--config"]).arg(&file));
    encke.create("s");
    let large = encke.ask("POST", &path("s"), &[JSON], &[b' '; 1025]);
    assert_eq!(large.status, 413);
    assert!(data.is_dir());
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn a_service_of_the_same_name_does_not_keep_the_server_from_starting() {
    let data = data_dir();
    let mut command = serve(data.path(), &[]);
    for (name, value) in [
        ("ENCKE_SERVICE_HOST", "10.96.0.7"),
        ("ENCKE_SERVICE_PORT", "4437"),
        ("ENCKE_SERVICE_PORT_HTTP", "4437"),
        ("ENCKE_PORT", "tcp://10.96.0.7:4437"),
        ("ENCKE_PORT_4437_TCP", "tcp://10.96.0.7:4437"),
        ("ENCKE_PORT_4437_TCP_PROTO", "tcp"),
        ("ENCKE_PORT_4437_TCP_PORT", "4437"),
        ("ENCKE_PORT_4437_TCP_ADDR", "10.96.0.7"),
    ] {
        command.env(name, value);
    }
    let encke = Encke::start_by(&mut command);
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
    let mut check = command_of_the_log(data.path());
    check.env("ENCKE_PORT", "tcp://10.96.0.7:4437");
    assert_eq!(Ended::of(&mut check).code, Some(0));
}

/// The command that checks the log in this directory, and reads no settings.
fn command_of_the_log(data: &std::path::Path) -> Command {
    let mut check = command(&["log", "check"]);
    check.arg(data);
    check
}

#[test]
fn others_are_let_in_only_when_that_is_meant() {
    let data = data_dir();
    for address in ["0.0.0.0:0", "[::]:0"] {
        let mut command = command(&["serve", "--listen", address, "--open", "--log", "warn"]);
        // Another server may have the default one.
        command.args(["--admin-listen", "127.0.0.1:0"]);
        let encke = Encke::start_by(command.arg("--data").arg(data.path()));
        assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
        encke.kill();
    }
}

#[test]
fn an_address_that_is_taken() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let encke = Encke::start(&[]);
    // A second Encke server must fail as well: sharing a port would split the clients between two logs.
    for address in [taken.local_addr().expect("it listens"), encke.address] {
        let data = data_dir();
        let mut serve = command(&["serve", "--listen", &address.to_string(), "--data"]);
        let ended = Ended::of(serve.arg(data.path()));
        assert_eq!(ended.code, Some(4), "{ended:?}");
        assert!(ended.stderr.contains(&address.to_string()), "{ended:?}");
    }
    // An address that this machine does not have.
    let data = data_dir();
    let mut serve = command(&["serve", "--open", "--listen", "192.0.2.1:0", "--data"]);
    let ended = Ended::of(serve.arg(data.path()));
    assert_eq!(ended.code, Some(4), "{ended:?}");
    // And one that was left is free at once, whatever of it the system still remembers.
    let address = encke.address.to_string();
    let mut client = encke.connect();
    assert_eq!(client.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
    let mut serve = command(&["serve", "--listen", &address, "--data"]);
    serve.arg(data.path());
    let mut again = None;
    crate::rig::eventually("the server is back in its place", || {
        // Somebody's outgoing connection may have been given the port meanwhile, for a moment.
        again = Encke::try_start_by(&mut serve).ok();
        again.is_some()
    });
    let again = again.expect("it started");
    assert_eq!(again.ask("GET", "/healthz", &[], b"").status, 200);
}

#[test]
fn a_stop_in_the_middle_of_everything() {
    const SUBSCRIBERS: usize = 100;
    const PUBLISHERS: u64 = 8;
    let data = data_dir();
    // The test would not wait as long as the poll and the half request might.
    let flags = [
        "--tuning",
        "poll-wait=10m",
        "--tuning",
        "request-timeout=10m",
    ];
    let encke = Encke::start_in(data.path(), &flags);
    encke.create("s");
    let mut subscribers: Vec<_> = (0..SUBSCRIBERS)
        .map(|number| encke.subscribe("s", if number % 2 == 0 { "-1" } else { "now" }))
        .collect();
    let mut poller = encke.connect();
    // A long poll on another stream, and a client in the middle of a request.
    encke.create("quiet");
    let poll = format!("{}?offset=now&live=long-poll", path("quiet"));
    poller.send(&request("GET", &poll, &[], b""));
    encke.wait_for_metric("encke_subscribers", (SUBSCRIBERS + 1) as f64);
    let mut half = encke.connect();
    let head = "POST /v1/stream/s HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n";
    half.send(head.as_bytes());
    assert_eq!(half.head().status, 100, "the server has read the head");
    half.send(b"123");
    let appended = AtomicUsize::new(0);
    let (acknowledged, seen) = std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..PUBLISHERS)
            .map(|publisher| {
                let mut server = encke.connect();
                let appended = &appended;
                scope.spawn(move || {
                    let mut acknowledged = Vec::new();
                    for number in 0.. {
                        let number = publisher << 32 | number;
                        let body = number.to_string();
                        let append = request("POST", &path("s"), &[JSON], body.as_bytes());
                        if !server.send_anyway(&append) {
                            break;
                        }
                        let Some(answer) = server.answer_if_alive() else {
                            break;
                        };
                        assert_eq!(answer.status, 204, "{answer:?}");
                        acknowledged.push(number);
                        appended.fetch_add(1, Ordering::Relaxed);
                        if answer.closes() {
                            break;
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        let readers: Vec<_> = subscribers
            .chunks_mut(SUBSCRIBERS / 4)
            .map(|part| {
                scope.spawn(move || -> Vec<Vec<u64>> {
                    // That each ends between two events is looked at there.
                    part.iter_mut()
                        .map(|subscriber| subscriber.rest())
                        .collect()
                })
            })
            .collect();
        // No panic here: the publishers would go on.
        let begin = Instant::now();
        while appended.load(Ordering::Relaxed) <= 100 && begin.elapsed() < crate::rig::PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
        let stopped = encke.terminate();
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        half.expect_end();
        let acknowledged: Vec<u64> = publishers
            .into_iter()
            .flat_map(|publisher| publisher.join().expect("it was served until the end"))
            .collect();
        let seen: Vec<Vec<u64>> = readers
            .into_iter()
            .flat_map(|reader| reader.join().expect("streams end between two events"))
            .collect();
        (acknowledged, seen)
    });
    let answer = poller.answer();
    assert_eq!(answer.status, 204, "{answer:?}");
    assert!(answer.closes());
    // Every append that was answered is there, and every subscriber can go on where it was left.
    let encke = Encke::start_in(data.path(), &[]);
    let stored = encke.numbers("s");
    let there: std::collections::HashSet<u64> = stored.iter().copied().collect();
    assert_eq!(there.len(), stored.len(), "nothing is there twice");
    assert!(acknowledged.len() > 100);
    for number in acknowledged {
        assert!(there.contains(&number), "{number} was acknowledged");
    }
    for (subscriber, seen) in subscribers.iter().zip(&seen) {
        assert!(stored.starts_with(seen));
        assert!(!subscriber.closed, "the stream goes on");
        let target = format!("{}?offset={}", path("s"), subscriber.next_offset);
        let rest = encke.ask("GET", &target, &[], b"");
        let rest: Vec<u64> = serde_json::from_slice(&rest.body).expect("JSON");
        assert_eq!(rest, stored[seen.len()..]);
    }
}

#[test]
fn a_stop_waits_a_bounded_time_for_a_client_that_does_not_read() {
    // The test would not wait for this timeout.
    let encke = Encke::start(&["--tuning", "stall-timeout=10m"]);
    encke.create("s");
    let _stalled = encke.subscribe("s", "-1");
    let mut connection = encke.connect();
    let body = format!("\"{}\"", "x".repeat(100 << 10));
    for _ in 0..150 {
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
    }
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}

#[test]
fn an_interrupt_is_a_stop_too() {
    let encke = Encke::start(&[]);
    encke.create("s");
    let mut subscriber = encke.subscribe("s", "-1");
    let stopped = encke.stop(Signal::INT);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(subscriber.rest(), [0_u64; 0]);
}

#[test]
fn logs_as_json_are_json() {
    let data = data_dir();
    let mut command = serve(data.path(), &["--log-format", "json", "--log", "debug"]);
    let encke = Encke::start_by(&mut command);
    encke.create("s");
    let mut connection: Connection = encke.connect();
    connection.send(b"\"quoted\\\" \x1b[31m nonsense\r\n\r\n");
    assert_eq!(connection.answer().status, 400);
    assert_eq!(encke.ask("GET", "/v1/stream/%22", &[], b"").status, 404);
    let text = encke.terminate().log;
    assert!(text.lines().count() >= 3, "{text}");
    let mut said = BTreeSet::new();
    for line in text.lines() {
        let entry: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        for field in ["timestamp", "level", "target"] {
            assert!(entry[field].is_string(), "{field} in {line}");
        }
        if let Some(message) = entry["fields"]["message"].as_str() {
            said.insert(message.to_owned());
        }
    }
    assert!(said.contains("the log is open"), "{said:?}");
    assert!(said.contains("stopped"), "{said:?}");
}

#[test]
fn logs_for_people_have_no_colours_in_a_file() {
    let data = data_dir();
    let encke = Encke::start_by(serve(data.path(), &[]).env("ENCKE_LOG", "debug"));
    encke.create("s");
    let log = encke.log();
    assert!(log.contains("the log is open"), "{log}");
    assert!(!log.contains('\x1b'), "{log}");
    assert!(log.contains(&data.path().display().to_string()), "{log}");
}

#[test]
#[ignore = "long: make test-all"]
fn a_second_signal_ends_a_stop_and_says_which() {
    if !strace_works() {
        return;
    }
    let dir = data_dir();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("the directory is ours");
    // The stop waits for a sync that takes far longer than the next signal. strace holds what has ended for as long.
    let fault = Fault::new(&data, dir.path(), "fdatasync:delay_enter=20000000:when=1");
    let encke = Encke::start_by(fault.serve(&data, &[]).env("ENCKE_LOG", "info"));
    encke.create("s");
    fault.arm();
    let mut connection = encke.connect();
    connection.send(&request("POST", &path("s"), &[JSON], b"1"));
    wait_for_sync(&encke);
    encke.signal(Signal::INT);
    eventually("the stop has begun", || {
        encke.log().contains("a second signal stops at once")
    });
    assert_eq!(encke.stop(Signal::TERM).code, Some(143));
}
