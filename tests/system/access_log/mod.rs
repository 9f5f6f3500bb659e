//! The access log: every request has one line with what happened, whatever the client sends and however the output fails.

mod entries;
mod fields;
mod output;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{Encke, data_dir, eventually};

/// A server with an access log in a file.
struct Logged {
    encke: Encke,
    file: PathBuf,
    _dir: TempDir,
}

impl Logged {
    fn start(format: &str, flags: &[&str]) -> Logged {
        let dir = data_dir();
        let file = dir.path().join("access.log");
        let setting = format!("access-log-file={}", file.display());
        let flags = [&["--access-log", format, "--tuning", &setting], flags].concat();
        Logged {
            encke: Encke::start(&flags),
            file,
            _dir: dir,
        }
    }

    /// The first entries, once this number is written; there are no more.
    fn entries(&self, count: usize) -> Vec<Value> {
        eventually("the entries are written", || {
            lines(&self.file).len() >= count
        });
        let lines = lines(&self.file);
        assert_eq!(lines.len(), count, "{lines:#?}");
        lines.iter().map(|line| entry(line)).collect()
    }
}

/// The complete lines of a file.
fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    text[..end].lines().map(str::to_owned).collect()
}

/// A line as JSON, with all fields and nothing else.
fn entry(line: &str) -> Value {
    let entry: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    let fields: Vec<&str> = entry
        .as_object()
        .expect("an object")
        .keys()
        .map(|key| &**key)
        .collect();
    let expected = [
        "bytes",
        "caller",
        "client",
        "duration_ms",
        "end",
        "method",
        "path",
        "protocol",
        "referer",
        "request_id",
        "status",
        "time",
        "trace_id",
        "user_agent",
    ];
    assert_eq!(fields, expected, "{line}");
    assert!(
        entry["duration_ms"].is_f64() && entry["time"].is_string(),
        "{line}"
    );
    entry
}

/// Method, path, status, bytes of the body and the end.
fn facts(entry: &Value) -> (Option<&str>, Option<&str>, u64, u64, &str) {
    let text = |name: &str| entry[name].as_str();
    let number = |name: &str| entry[name].as_u64().expect("a number");
    (
        text("method"),
        text("path"),
        number("status"),
        number("bytes"),
        text("end").expect("a text"),
    )
}

/// The lines of several connections are in order.
const ONE_SHARD: [&str; 2] = ["--shards", "1"];
