//! Backups in a bucket of an S3-compatible server: under load, and when the credentials, the bucket, the network or an object is wrong.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tempfile::TempDir;

use crate::backups::{Place, append, backups_under_load};
use crate::ports::fixed_port;
use crate::rig::{Encke, Ended, JSON, can_use, data_dir, eventually, path, serve};

/// A server with one bucket, whose objects are files; killed when dropped.
struct S3Server {
    child: Child,
    port: u16,
    files: TempDir,
    _attributes: TempDir,
}

/// The program that `make test-all` builds.
fn program() -> PathBuf {
    std::env::var_os("S3_SERVER").map_or_else(|| "versitygw".into(), PathBuf::from)
}

const BUCKET: &str = "backups";

impl S3Server {
    /// Starts a server. `None` if there is no versitygw here.
    fn start() -> Option<S3Server> {
        let works = || {
            let version = Command::new(program()).arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        };
        if !can_use("versitygw", works) {
            return None;
        }
        let (files, attributes, port) = (data_dir(), data_dir(), fixed_port());
        std::fs::create_dir(files.path().join(BUCKET)).expect("the directory is ours");
        let child = Command::new(program())
            .args(["--access", "admin", "--secret", "right", "--quiet"])
            .args(["--port", &format!("127.0.0.1:{port}"), "posix", "--sidecar"])
            .arg(attributes.path())
            .arg(files.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let server = S3Server {
            child: child.expect("it starts"),
            port,
            files,
            _attributes: attributes,
        };
        eventually("the server listens", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(server)
    }

    /// A place in the bucket, for somebody with that secret, through that port.
    fn place(&self, bucket: &str, secret: &str, port: u16) -> Place {
        Place {
            at: format!("s3://{bucket}/one/server").into(),
            variables: vec![
                ("AWS_ACCESS_KEY_ID", "admin".to_owned()),
                ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
                ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
            ],
        }
    }

    fn good_place(&self) -> Place {
        self.place(BUCKET, "right", self.port)
    }

    /// The files of all objects.
    fn objects(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.files.path().join(BUCKET)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("it can be read") {
                let path = entry.expect("it can be read").path();
                // The server's own, for objects that are not whole yet.
                let is_own = path.file_name().is_some_and(|name| name == ".sgwtmp");
                match path.is_dir() {
                    _ if is_own => {}
                    true => folders.push(path),
                    false => found.push(path),
                }
            }
        }
        found
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stands between the command and the server, and goes away for good when it has passed so many bytes on to the server.
struct Gateway {
    port: u16,
    is_gone: Arc<AtomicBool>,
}

impl Gateway {
    fn start(to: u16, bytes_max: u64) -> Gateway {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it listens").port();
        let is_gone = Arc::new(AtomicBool::new(false));
        let (gone, passed) = (Arc::clone(&is_gone), Arc::new(AtomicU64::new(0)));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a connection");
                if gone.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else {
                    continue;
                };
                let back = (
                    server.try_clone().expect("a socket"),
                    client.try_clone().expect("a socket"),
                );
                std::thread::spawn(move || pass_on(back.0, back.1, |_| true));
                let (gone, passed) = (Arc::clone(&gone), Arc::clone(&passed));
                std::thread::spawn(move || {
                    pass_on(client, server, |bytes| {
                        let passed = passed.fetch_add(bytes as u64, Ordering::SeqCst);
                        gone.fetch_or(passed >= bytes_max, Ordering::SeqCst);
                        !gone.load(Ordering::SeqCst)
                    });
                });
            }
        });
        Gateway { port, is_gone }
    }
}

/// Copies while `goes_on`, and then closes both sockets.
fn pass_on(mut from: TcpStream, mut to: TcpStream, goes_on: impl Fn(usize) -> bool) {
    let mut some = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut some) {
        if count == 0 || !goes_on(count) || to.write_all(&some[..count]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// A server with some megabytes that do not compress.
fn filled(data: &Path) -> Encke {
    let encke = Encke::start_in(data, &["--segment", "16MiB", "--body-max", "7MiB"]);
    encke.create("s");
    for number in 0..16 {
        let body = format!("[{number},\"{}\"]", "x".repeat(1 << 20));
        assert_eq!(
            encke
                .ask("POST", &path("s"), &[JSON], body.as_bytes())
                .status,
            204
        );
    }
    encke
}

fn refused(ended: &Ended, code: i32, why: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stderr.contains(why), "{ended:?}");
    assert!(
        !ended.stderr.contains("X-Amz-Signature"),
        "no credential is shown: {ended:?}"
    );
}

#[test]
#[ignore = "needs an S3 server: make test-all"]
fn each_backup_in_a_bucket_is_a_prefix_of_what_was_acknowledged() {
    if let Some(server) = S3Server::start() {
        backups_under_load(&server.good_place());
    }
}

#[test]
#[ignore = "needs an S3 server: make test-all"]
fn backups_in_a_bucket_are_listed_verified_and_removed() {
    let Some(server) = S3Server::start() else {
        return;
    };
    let (place, data) = (server.good_place(), data_dir());
    let encke = filled(data.path());
    let mut names = Vec::new();
    for number in 0..3 {
        append(&encke, "s", number);
        names.push(place.succeeds(&["backup"], &[data.path(), &place.at])["name"].clone());
    }
    // What has not changed is not stored again.
    let again = place.succeeds(&["backup"], &[data.path(), &place.at]);
    assert!(again["bytes_stored"].as_u64() < Some(1 << 20), "{again}");
    names.push(again["name"].clone());
    let listed = |place: &Place| {
        let listed = place.succeeds(&["backups", "--verify"], &[&place.at]);
        let all = listed["backups"].as_array().expect("a list").iter();
        all.map(|one| one["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&place), names);
    let first = place.restored(&names[0]);
    let flags = ["--segment", "16MiB", "--body-max", "7MiB"];
    let copy = Encke::start_in(first.path(), &flags);
    assert_eq!(copy.messages("s").len(), 33);
    drop(copy);
    let report = place.succeeds(&["backup", "--keep", "1"], &[data.path(), &place.at]);
    assert_eq!(report["removed_backups"], 4);
    assert_eq!(listed(&place), [report["name"].clone()]);

    // An object that has other content is found, and not restored; so is one that is missing.
    let objects = server.objects();
    let size = |object: &&PathBuf| object.metadata().expect("it is there").len();
    let largest = objects.iter().max_by_key(size).expect("there are some");
    let good = std::fs::read(largest).expect("it can be read");
    let mut damaged = good.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(largest, &damaged).expect("it can be written");
    let into = data_dir();
    let restore = |into: &TempDir| place.log(&["restore"], &[&place.at, into.path()]);
    refused(&restore(&into), 1, "has other content");
    let verified = place.log(&["backups", "--verify"], &[&place.at]);
    assert_eq!(verified.code, Some(1), "{verified:?}");
    assert!(
        verified.stdout.contains("has other content"),
        "{verified:?}"
    );
    std::fs::remove_file(largest).expect("it is there");
    let into = data_dir();
    let ended = restore(&into);
    refused(&ended, 1, "is missing");
    // A server takes nothing of it for its data.
    refused(
        &Ended::of(&mut serve(into.path(), &flags)),
        3,
        "is not complete",
    );
}

#[test]
#[ignore = "needs an S3 server: make test-all"]
fn wrong_credentials_and_a_missing_bucket_are_named() {
    let Some(server) = S3Server::start() else {
        return;
    };
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &[]);
    encke.create("s");
    for (place, why) in [
        (
            server.place(BUCKET, "wrong", server.port),
            "SignatureDoesNotMatch",
        ),
        (
            server.place("nowhere", "right", server.port),
            "there is no bucket nowhere",
        ),
    ] {
        let into = data_dir();
        refused(&place.log(&["backup"], &[data.path(), &place.at]), 1, why);
        refused(&place.log(&["backups"], &[&place.at]), 1, why);
        refused(&place.log(&["restore"], &[&place.at, into.path()]), 1, why);
        assert!(server.objects().is_empty());
        let files = std::fs::read_dir(into.path()).expect("it is there");
        assert_eq!(files.count(), 0, "nothing was restored");
    }
    let place = server.good_place();
    let into = data_dir();
    refused(
        &place.log(&["restore"], &[&place.at, into.path()]),
        1,
        "there are no backups",
    );
}

#[test]
#[ignore = "needs an S3 server: make test-all"]
fn a_backup_that_loses_its_server_leaves_none() {
    let Some(server) = S3Server::start() else {
        return;
    };
    let (place, data) = (server.good_place(), data_dir());
    let encke = filled(data.path());
    // Some pieces are stored, and most are not.
    let gateway = Gateway::start(server.port, 6 << 20);
    let interrupted = server.place(BUCKET, "right", gateway.port);
    let ended = interrupted.log(&["backup"], &[data.path(), &place.at]);
    assert!(gateway.is_gone.load(Ordering::SeqCst));
    refused(&ended, 1, "one/server/pieces/");
    assert!(!server.objects().is_empty(), "it had begun");
    let listed = place.succeeds(&["backups"], &[&place.at]);
    assert_eq!(listed["backups"].as_array().map(Vec::len), Some(0));
    // The server goes on, and the next backup uses what is there.
    append(&encke, "s", 7);
    let report = place.succeeds(&["backup"], &[data.path(), &place.at]);
    assert!(
        report["bytes_stored"].as_u64() < report["bytes_read"].as_u64(),
        "{report}"
    );
    let directory = place.restored(&report["name"]);
    let copy = Encke::start_in(
        directory.path(),
        &["--segment", "16MiB", "--body-max", "7MiB"],
    );
    assert_eq!(copy.messages("s"), encke.messages("s"));
    drop(copy);
    // A restore that loses its server leaves nothing that a server takes for its data.
    let gateway = Gateway::start(server.port, 600);
    let interrupted = server.place(BUCKET, "right", gateway.port);
    let into = data_dir();
    let ended = interrupted.log(&["restore"], &[&place.at, into.path()]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let again = data_dir();
    place.succeeds(&["restore"], &[&place.at, again.path()]);
}
