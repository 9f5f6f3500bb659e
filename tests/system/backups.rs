//! Backups of a running server: each is a whole log of its moment, and none is more than what it says.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{
    Encke, Ended, JSON, SetWhenDropped, command, data_dir, eventually, path, request, serve_on,
};

/// Where backups are: a directory, or a bucket.
pub(crate) struct Place {
    pub(crate) at: PathBuf,
    /// Environment variables that lead there.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Place {
    fn directory(path: &Path) -> Place {
        Place {
            at: path.to_owned(),
            variables: Vec::new(),
        }
    }

    /// The command of `encke log`.
    pub(crate) fn log(&self, arguments: &[&str], paths: &[&Path]) -> Ended {
        let variables = self.variables.iter().cloned();
        let mut command = command(&["log"]);
        Ended::of(command.args(arguments).args(paths).envs(variables))
    }

    /// The report of such a command.
    pub(crate) fn succeeds(&self, arguments: &[&str], paths: &[&Path]) -> Value {
        let ended = self.log(&[arguments, &["--json"]].concat(), paths);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        serde_json::from_str(&ended.stdout).expect("a report")
    }

    /// A backup restored into a directory of its own, by its name.
    pub(crate) fn restored(&self, name: &Value) -> TempDir {
        let directory = data_dir();
        let at = name.as_str().expect("a name");
        self.succeeds(&["restore", "--at", at], &[&self.at, directory.path()]);
        let checked = log(&["check"], &[directory.path()]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        directory
    }
}

fn log(arguments: &[&str], paths: &[&Path]) -> Ended {
    Ended::of(command(&["log"]).args(arguments).args(paths))
}

fn succeeds(arguments: &[&str], paths: &[&Path]) -> Value {
    let ended = log(&[arguments, &["--json"]].concat(), paths);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("a report")
}

fn restored(backups: &Path, name: &Value) -> TempDir {
    Place::directory(backups).restored(name)
}

pub(crate) fn append(encke: &Encke, stream: &str, number: u64) {
    let body = number.to_string();
    let appended = encke.ask("POST", &path(stream), &[JSON], body.as_bytes());
    assert_eq!(appended.status, 204);
}

#[test]
fn each_backup_under_load_is_a_prefix_of_what_was_acknowledged() {
    let backups = data_dir();
    backups_under_load(&Place::directory(backups.path()));
}

/// Makes backups while records are appended, restores each, and checks that it is a prefix of what was acknowledged.
pub(crate) fn backups_under_load(place: &Place) {
    let data = data_dir();
    let small = [
        "--segment",
        "1MiB",
        "--body-max",
        "100KiB",
        "--order-size",
        "1MiB",
    ];
    let encke = Encke::start_in(data.path(), &small);
    let streams = ["a", "b", "c"];
    for stream in streams {
        encke.create(stream);
    }
    let acknowledged: [AtomicU64; 3] = Default::default();
    let begun: [AtomicU64; 3] = Default::default();
    let over = AtomicBool::new(false);
    let load = |numbers: &[AtomicU64; 3]| numbers.each_ref().map(|one| one.load(Ordering::SeqCst));
    std::thread::scope(|scope| {
        for (at, stream) in streams.into_iter().enumerate() {
            let (encke, over, begun, acknowledged) = (&encke, &over, &begun[at], &acknowledged[at]);
            scope.spawn(move || {
                let mut connection = encke.connect();
                let pad = "x".repeat(2_000);
                for number in 0.. {
                    if over.load(Ordering::SeqCst) {
                        break;
                    }
                    begun.store(number + 1, Ordering::SeqCst);
                    let body = format!("{{\"n\":{number},\"pad\":\"{pad}\"}}");
                    let answer = connection.ask("POST", &path(stream), &[JSON], body.as_bytes());
                    assert_eq!(answer.status, 204);
                    acknowledged.store(number + 1, Ordering::SeqCst);
                    // A backup copies what came during the one before: with a slow disk each would take longer than that.
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let is_over = SetWhenDropped(&over);
        let mut made = Vec::new();
        for _ in 0..6 {
            let before = load(&acknowledged);
            let report = place.succeeds(&["backup"], &[data.path(), &place.at]);
            made.push((report["name"].clone(), before, load(&begun)));
            // The writers go on between two backups.
            let enough = load(&acknowledged).map(|number| number + 200);
            eventually("appends go on", || load(&acknowledged) >= enough);
        }
        drop(is_over);
        for (name, before, behind) in made {
            let directory = place.restored(&name);
            let encke = Encke::start_in(directory.path(), &small);
            for (at, stream) in streams.into_iter().enumerate() {
                let numbers: Vec<u64> = encke
                    .messages(stream)
                    .iter()
                    .map(|message| message["n"].as_u64().expect("a message of ours"))
                    .collect();
                let count = numbers.len() as u64;
                assert!(numbers.iter().copied().eq(0..count), "{name} {stream}");
                assert!(
                    (before[at]..=behind[at]).contains(&count),
                    "{name} {stream}"
                );
            }
            // It goes on as any log does.
            encke.create("new");
            append(&encke, "new", 7);
            assert_eq!(encke.terminate().code, Some(0));
        }
    });
}

#[test]
fn a_backup_reads_and_stores_what_is_new() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &["--segment", "16MiB", "--body-max", "7MiB"]);
    encke.create("s");
    let body = |number: u64| format!("[{number},\"{}\"]", "x".repeat(1 << 20));
    for number in 0..40 {
        let answer = encke.ask("POST", &path("s"), &[JSON], body(number).as_bytes());
        assert_eq!(answer.status, 204);
    }
    eventually("segments are in history", || {
        encke.metric("encke_log_segments_waiting", "") == 0.0
    });
    let first = succeeds(&["backup"], &[data.path(), backups.path()]);
    assert!(first["bytes_read"].as_u64() > Some(40 << 20), "{first}");
    let again = succeeds(&["backup"], &[data.path(), backups.path()]);
    // The end of the last segment, and what is no file of the log.
    assert!(again["bytes_read"].as_u64() < Some(5 << 20), "{again}");
    assert!(again["bytes_stored"].as_u64() < Some(1 << 20), "{again}");
    encke.kill();

    // After a crash the last segment may have been cut off, so it is read again, and what is there is not stored again.
    let encke = Encke::start_in(data.path(), &["--segment", "16MiB", "--body-max", "7MiB"]);
    append(&encke, "s", 1);
    let third = succeeds(&["backup"], &[data.path(), backups.path()]);
    assert!(third["bytes_stored"].as_u64() < Some(5 << 20), "{third}");
    let directory = restored(backups.path(), &third["name"]);
    let copy = Encke::start_in(
        directory.path(),
        &["--segment", "16MiB", "--body-max", "7MiB"],
    );
    assert_eq!(copy.messages("s"), encke.messages("s"));
}

#[test]
fn backups_are_listed_verified_and_removed() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &["--logs", "3"]);
    let mut names = Vec::new();
    for number in 0..3 {
        for stream in ["a", "b", "c", "d"] {
            if number == 0 {
                encke.create(stream);
            }
            append(&encke, stream, number);
        }
        names.push(succeeds(&["backup"], &[data.path(), backups.path()])["name"].clone());
    }
    let listed = succeeds(&["backups", "--verify"], &[backups.path()]);
    let of = |listed: &Value| -> Vec<Value> {
        let all = listed["backups"].as_array().expect("a list").iter();
        all.map(|one| one["name"].clone()).collect()
    };
    assert_eq!(of(&listed), names);
    assert_eq!(
        listed["backups"][0]["upto"].as_array().map(Vec::len),
        Some(3)
    );

    // To the moment of each, all logs together.
    for (count, name) in (1..).zip(&names) {
        let directory = restored(backups.path(), name);
        let copy = Encke::start_in(directory.path(), &["--logs", "3"]);
        assert_eq!(copy.numbers("d"), (0..count).collect::<Vec<_>>());
    }
    let early = data_dir();
    let refused = log(
        &["restore", "--at", "2020-01-01T00:00:00Z"],
        &[backups.path(), early.path()],
    );
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("the first backup is of"),
        "{refused:?}"
    );

    // With --keep the others go, and what only they had.
    let before = pieces(backups.path()).len();
    let report = succeeds(&["backup", "--keep", "1"], &[data.path(), backups.path()]);
    assert_eq!(report["removed_backups"], 3);
    assert!(report["removed_pieces"].as_u64() > Some(0), "{report}");
    assert!(pieces(backups.path()).len() < before + 10);
    let listed = succeeds(&["backups", "--verify"], &[backups.path()]);
    assert_eq!(of(&listed), [report["name"].clone()]);

    // What is damaged is found, and not restored.
    let pieces = pieces(backups.path());
    let largest = pieces
        .iter()
        .max_by_key(|piece| piece.metadata().expect("it is there").len());
    let largest = largest.expect("there are some");
    let mut content = std::fs::read(largest).expect("it can be read");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(largest, content).expect("it can be written");
    let verified = log(&["backups", "--verify"], &[backups.path()]);
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(
        verified.stdout.contains("has other content"),
        "{verified:?}"
    );
    let directory = data_dir();
    let refused = log(&["restore"], &[backups.path(), directory.path()]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("has other content"), "{refused:?}");
}

#[test]
fn a_damaged_backup_hinders_no_other() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    let back_up = |flags: &[&str]| {
        let arguments = [&["backup"], flags].concat();
        succeeds(&arguments, &[data.path(), backups.path()])
    };
    let first = back_up(&[]);
    let name = first["name"].as_str().expect("a name");
    let manifest = backups.path().join(format!("backups/{name}.json"));
    // A list of a later version must be able to find its pieces again.
    std::fs::write(&manifest, "").expect("it can be written");
    append(&encke, "s", 1);
    let second = back_up(&["--keep", "2"]);
    assert_eq!(second["damaged_backups"], 1);
    let third = back_up(&["--keep", "1"]);
    assert_eq!(third["damaged_backups"], 0);
    assert_eq!(third["removed_backups"], 2);
    let listed = succeeds(&["backups", "--verify"], &[backups.path()]);
    assert_eq!(listed["backups"].as_array().map(Vec::len), Some(1));
    let directory = restored(backups.path(), &third["name"]);
    assert_eq!(Encke::start_in(directory.path(), &[]).numbers("s"), [1]);
}

#[test]
fn a_backup_of_a_clock_that_was_ahead_is_not_the_last_one() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    let places = [data.path(), backups.path()];
    let first = succeeds(&["backup"], &places);
    let list = |name: &str| backups.path().join(format!("backups/{name}.json"));
    let ahead = "2999-01-01T00:00:00.000Z";
    let name = first["name"].as_str().expect("a name");
    std::fs::rename(list(name), list(ahead)).expect("it is ours");
    append(&encke, "s", 1);
    let second = succeeds(&["backup", "--keep", "2"], &places);
    assert_eq!(second["removed_backups"], 0);
    let restored_by = |flags: &[&str]| {
        let directory = data_dir();
        let arguments = [&["restore"], flags].concat();
        succeeds(&arguments, &[backups.path(), directory.path()]);
        Encke::start_in(directory.path(), &[]).numbers("s")
    };
    assert_eq!(restored_by(&[]), [1]);
    let name = second["name"].as_str().expect("a name");
    assert_eq!(restored_by(&["--at", name]), [1]);
    assert_eq!(restored_by(&["--at", ahead]), [0; 0]);
    let early = ["restore", "--at", "2020-01-01T00:00:00Z"];
    let refused = log(&early, &[places[1], &data.path().join("copy")]);
    let first = format!("the first backup is of {name}");
    assert!(refused.stderr.contains(&first), "{refused:?}");
    let third = succeeds(&["backup", "--keep", "2"], &places);
    assert_eq!(third["removed_backups"], 1);
    assert!(!list(ahead).exists());
}

#[test]
fn who_reads_backups_hinders_no_backup_and_makes_nothing() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    let places = [data.path(), backups.path()];
    succeeds(&["backup"], &places);
    let hold = |path: PathBuf, operation| {
        let file = std::fs::File::open(path).expect("it is there");
        rustix::fs::flock(&file, operation).expect("nobody has it");
        file
    };
    // A program that another test starts at that moment has the file, too.
    let release = |file| rustix::fs::flock(file, FlockOperation::Unlock).expect("it is ours");
    // One that is being verified or restored is not removed.
    let reader = hold(places[1].join("readers"), FlockOperation::LockShared);
    let kept = log(&["backup", "--keep", "1", "--json"], &places);
    assert_eq!(kept.code, Some(0), "{kept:?}");
    assert!(kept.stderr.contains("are being read"), "{kept:?}");
    assert!(
        kept.stdout.contains("\"kept_because\": \"readers\""),
        "{kept:?}"
    );
    let listed = succeeds(&["backups"], &places[1..]);
    assert_eq!(listed["backups"].as_array().map(Vec::len), Some(2));
    release(reader);
    let report = succeeds(&["backup", "--keep", "1"], &places);
    assert_eq!(report["removed_backups"], 2);

    // Two backups exclude each other.
    let writer = hold(places[1].join("lock"), FlockOperation::LockExclusive);
    let refused = log(&["backup"], &places);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("in use by another backup"),
        "{refused:?}"
    );
    succeeds(&["backups", "--verify"], &places[1..]);
    release(writer);

    let missing = places[1].join("missing");
    let copy = data_dir();
    for (command, paths) in [
        ("backups", &[&*missing][..]),
        ("restore", &[&*missing, copy.path()]),
    ] {
        let refused = log(&[command], paths);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(
            refused.stderr.contains("there is no directory"),
            "{refused:?}"
        );
    }
    assert!(!missing.exists());
}

/// The files below a directory of backups that have pieces.
fn pieces(backups: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(backups.join("pieces")).expect("there are some");
    let folders = folders.map(|folder| folder.expect("an entry").path());
    folders
        .flat_map(|folder| std::fs::read_dir(folder).expect("a folder"))
        .map(|file| file.expect("an entry").path())
        .collect()
}

#[test]
fn backups_wait_while_the_server_is_upgraded() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    append(&encke, "s", 7);
    let made = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                succeeds(&["backup"], &[data.path(), backups.path()]);
                made.fetch_add(1, Ordering::SeqCst);
            }
        });
        let is_over = SetWhenDropped(&over);
        for _ in 0..3 {
            let before = made.load(Ordering::SeqCst);
            let upgraded = Ended::of(command(&["upgrade"]).arg(data.path()));
            assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
            eventually("a backup was made", || made.load(Ordering::SeqCst) > before);
        }
        drop(is_over);
    });
    let last = succeeds(&["backup"], &[data.path(), backups.path()]);
    let directory = restored(backups.path(), &last["name"]);
    assert_eq!(Encke::start_in(directory.path(), &[]).numbers("s"), [7]);
}

#[test]
fn mistakes_change_nothing() {
    let (data, backups) = (data_dir(), data_dir());
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    succeeds(&["backup"], &[data.path(), backups.path()]);
    let refuses = |arguments: &[&str], paths: &[&Path], code: i32, why: &str| {
        let ended = log(arguments, paths);
        assert_eq!(ended.code, Some(code), "{ended:?}");
        assert!(ended.stderr.contains(why), "{ended:?}");
    };
    // Into a directory that has something, such as that of the server.
    let restore = [backups.path(), data.path()];
    refuses(&["restore"], &restore, 3, "is not empty");
    let wrong = Path::new("ftp://host/backups");
    refuses(&["backup"], &[data.path(), wrong], 2, "s3://BUCKET/PREFIX");
    let bucket = Path::new("s3://bucket/backups");
    refuses(
        &["backup"],
        &[data.path(), bucket],
        2,
        "AWS_ACCESS_KEY_ID is not set",
    );

    // More at a time than there may be.
    let none_runs = || encke.metric("encke_backups_running", "") == 0.0;
    eventually("the first one is over", none_runs);
    let socket = || UnixStream::connect(data.path().join("snapshots")).expect("it listens");
    let held: Vec<UnixStream> = (0..2).map(|_| socket()).collect();
    refuses(
        &["backup"],
        &[data.path(), backups.path()],
        1,
        "no more at a time",
    );
    assert_eq!(encke.metric("encke_backups_running", ""), 2.0);
    assert_eq!(encke.metric("encke_backups_refused_total", ""), 1.0);
    drop(held);
    eventually("those that are gone take no place", none_runs);
    succeeds(&["backup"], &[data.path(), backups.path()]);

    // Others may not connect, and a message that is none ends the connection.
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(data.path().join("snapshots"))
        .expect("it is there")
        .permissions();
    assert_eq!(mode.mode() & 0o077, 0);
    let mut stranger = socket();
    stranger
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .expect("it listens");
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).expect("it ends");
    assert!(said.is_empty());

    assert_eq!(encke.terminate().code, Some(0));
    refuses(
        &["backup"],
        &[data.path(), backups.path()],
        3,
        "no server answers",
    );
    // What a killed server leaves is no server.
    let encke = Encke::start_in(data.path(), &[]);
    encke.kill();
    refuses(
        &["backup"],
        &[data.path(), backups.path()],
        3,
        "no server answers",
    );
    let encke = Encke::start_in(data.path(), &[]);
    succeeds(&["backup"], &[data.path(), backups.path()]);
    drop(encke);
    let empty = data_dir();
    refuses(
        &["restore"],
        &[empty.path(), &empty.path().join("new")],
        1,
        "there are no backups",
    );
}

/// The sockets for commands are there before the first request is answered.
#[test]
fn a_backup_succeeds_as_soon_as_the_server_answers() {
    let (data, backups) = (data_dir(), data_dir());
    let address = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
        listener.local_addr().expect("it has one")
    };
    for _ in 0..10 {
        let mut command = serve_on(&address.to_string(), data.path(), &[]);
        let starting = std::thread::spawn(move || Encke::start_by(&mut command));
        eventually("a request is answered", || {
            let Ok(mut socket) = TcpStream::connect(address) else {
                return false;
            };
            let answer = socket
                .write_all(&request("GET", "/healthz", &[], b""))
                .and_then(|()| socket.read(&mut [0; 100]));
            answer.is_ok_and(|bytes| bytes > 0)
        });
        succeeds(&["backup"], &[data.path(), backups.path()]);
        let encke = starting.join().expect("it starts");
        assert_eq!(encke.terminate().code, Some(0));
    }
}
