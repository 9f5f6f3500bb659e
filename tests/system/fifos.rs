//! FIFOs where the server expects files: it waits for no process at their other ends, or for a bounded time.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

use crate::rig::{Encke, data_dir, eventually, serve};

fn make_fifo(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).expect("a FIFO");
}

fn fifo_in(folder: &tempfile::TempDir) -> PathBuf {
    let path = folder.path().join("fifo");
    make_fifo(&path);
    path
}

#[test]
fn a_configuration_that_is_a_fifo_for_a_moment_is_read_again_later() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("encke.toml");
    std::fs::write(&path, "request-rate = 1000\n").expect("it is ours");
    let config = path.to_str().expect("a path");
    let encke = Encke::start(&["--config", config]);
    let reloads = |result| encke.metric("encke_config_reloads_total", result);
    std::fs::remove_file(&path).expect("it is ours");
    make_fifo(&path);
    encke.signal(Signal::HUP);
    eventually("the FIFO is given up", || reloads("failed") > 0.0);
    assert!(encke.log().contains("nothing was reloaded"));
    std::fs::remove_file(&path).expect("it is ours");
    std::fs::write(&path, "request-rate = 2000\n").expect("it is ours");
    eventually("the file is read", || reloads("done") > 0.0);
}

#[test]
fn a_configuration_comes_from_a_pipe() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = fifo_in(&folder);
    let config = path.to_str().expect("a path").to_owned();
    let writer = std::thread::spawn(move || std::fs::write(path, "body-max = \"1KiB\"\n"));
    let encke = Encke::start(&["--config", &config]);
    writer.join().expect("no panic").expect("it is read");
    encke.create("s");
    let answer = encke.ask("POST", "/v1/stream/s", &[], &[b'1'; 2000]);
    assert_eq!(answer.status, 413, "{answer:?}");
}

#[test]
fn a_log_file_that_is_a_fifo_without_a_reader_ends_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = fifo_in(&folder);
    for setting in ["access-log-file", "audit-log-file"] {
        let setting = format!("{setting}={}", path.display());
        let flags = ["--access-log", "json", "--tuning", &setting];
        let ended = Encke::try_start_by(&mut serve(data_dir().path(), &flags));
        let ended = ended.err().expect("it does not start");
        assert_eq!(ended.code, Some(2), "{ended:?}");
        let reason = "no process reads the FIFO";
        assert!(ended.stderr.contains(reason), "{ended:?}");
    }
}

#[test]
fn a_log_file_may_be_a_fifo_with_a_reader() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = fifo_in(&folder);
    let setting = format!("access-log-file={}", path.display());
    // Opened for both, it waits for no writer.
    let mut options = File::options();
    let mut reader = options
        .read(true)
        .write(true)
        .open(path)
        .expect("it is ours");
    let encke = Encke::start(&["--access-log", "json", "--tuning", &setting]);
    assert_eq!(encke.ask("GET", "/healthz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
    let mut lines = [0; 4096];
    let bytes = reader.read(&mut lines).expect("there are lines");
    let lines = String::from_utf8_lossy(&lines[..bytes]);
    assert!(lines.contains("/healthz"), "{lines}");
}

#[test]
fn a_key_of_tls_that_is_a_fifo_without_a_writer_ends_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = fifo_in(&folder);
    let path = path.to_str().expect("a path");
    let flags = ["--tls-cert", path, "--tls-key", path];
    let ended = Encke::try_start_by(&mut serve(data_dir().path(), &flags));
    let ended = ended.err().expect("it does not start");
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("in time"), "{ended:?}");
}
