//! Judges the results of commands on a damaged directory.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::base::{Base, End, Stream, index_of_log};
use super::damage::{Case, Damage};
use crate::rig::{Encke, Ended, JSON, Snapshot, command, path, serve};

/// Damages a copy and tries everything on it; what went wrong.
pub(super) fn judge(base: &Base, case: &Case) -> Vec<String> {
    let copy = case.damaged_copy(base);
    let mut trial = Trial {
        base,
        case,
        before: Snapshot::of(copy.path()),
        copy,
        failures: Vec::new(),
    };
    // A step that panics has failed, and the next ones show more.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| trial.run())) {
        trial.failures.push(text_of(&*panic));
    }
    trial.failures
}

struct Trial<'a> {
    base: &'a Base,
    case: &'a Case,
    copy: TempDir,
    /// The copy as it was before anything looked at it; another copy is the same.
    before: Snapshot,
    failures: Vec<String>,
}

/// The records of one log that a repair names as lost.
pub(super) struct Lost {
    pub(super) log: usize,
    pub(super) from: u64,
    pub(super) upto: u64,
}

impl Trial<'_> {
    fn run(&mut self) {
        let check = self.inspect(&["check", "--quiet", "--json"]);
        let plan = self.inspect(&["repair", "--json"]);
        if matches!(self.case.damage, Damage::Nothing) && (check.code, plan.code) != SOUND {
            self.fail("nothing is damaged", &[&check, &plan]);
        }
        if let Some(refused) = self.serve() {
            if check.code == Some(0) {
                self.fail("check says sound, serve is refused", &[&check, &refused]);
            }
            self.repair();
        }
    }

    /// Runs a command that must leave everything as it is.
    fn inspect(&mut self, arguments: &[&str]) -> Ended {
        let what = format!("log {}", arguments.join(" "));
        let ended = self.log(arguments);
        if !matches!(ended.code, Some(0 | 1 | 3)) || ended.stderr.contains("panicked") {
            self.fail(&format!("{what} ends abnormally"), &[&ended]);
        } else if ended.code != Some(0) && !self.is_named_in(&ended) {
            self.fail(&format!("{what} does not name the place"), &[&ended]);
        }
        let changes = self.changes();
        if !changes.is_empty() {
            self.fail(
                &format!("{what} changes the directory: {changes:?}"),
                &[&ended],
            );
            self.copy = self.case.damaged_copy(self.base);
        }
        ended
    }

    /// Serves the directory: whole, or not at all. How it was refused.
    fn serve(&mut self) -> Option<Ended> {
        let refused = match self.start() {
            Ok(server) => {
                let tried = catch_unwind(AssertUnwindSafe(|| {
                    is_whole_but_for(&[], &server, self.base);
                    takes_a_record(&server, self.base);
                    let stopped = server.terminate();
                    assert_eq!(stopped.code, Some(0), "{stopped:?}");
                }));
                if let Err(panic) = tried {
                    let what = format!("served, and not whole: {}", text_of(&*panic));
                    self.fail(&what, &[]);
                }
                return None;
            }
            Err(refused) => refused,
        };
        if refused.code != Some(3) || refused.stderr.contains("panicked") {
            self.fail("serve ends abnormally", &[&refused]);
        } else if !self.is_named_in(&refused) {
            self.fail("serve does not name the place", &[&refused]);
        }
        if self.is_changed_by("serve was refused", &refused) {
            self.copy = self.case.damaged_copy(self.base);
        }
        Some(refused)
    }

    /// Repairs a directory that is refused: what is lost then is exactly what it says.
    fn repair(&mut self) {
        let repaired = self.log(&["repair", "--accept-loss", "--json"]);
        match repaired.code {
            Some(0) => {}
            Some(3) => {
                let advises = ["restore", "copy"].map(|word| repaired.stderr.contains(word));
                if advises != [true, true] && !self.is_named_in(&repaired) {
                    self.fail("repair is refused without a reason", &[&repaired]);
                }
                self.is_changed_by("repair was refused", &repaired);
                return;
            }
            _ => return self.fail("repair ends abnormally", &[&repaired]),
        }
        let lost = losses(&repaired);
        let server = match self.start() {
            Ok(server) => server,
            Err(refused) => {
                return self.fail("serve is refused after a repair", &[&repaired, &refused]);
            }
        };
        let tried = catch_unwind(AssertUnwindSafe(|| {
            is_whole_but_for(&lost, &server, self.base);
            let stopped = server.terminate();
            assert_eq!(stopped.code, Some(0), "{stopped:?}");
        }));
        if let Err(panic) = tried {
            let what = format!("repair lost something else: {}", text_of(&*panic));
            self.fail(&what, &[&repaired]);
        }
    }

    fn start(&self) -> Result<Encke, Ended> {
        let flags = self.base.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        Encke::try_start_by(&mut serve(self.copy.path(), &flags))
    }

    fn log(&self, arguments: &[&str]) -> Ended {
        let mut log = command(&["log"]);
        Ended::of(log.args(arguments).arg(self.copy.path()))
    }

    /// Whether anything but the lock of a log is not as it was, which is a failure.
    fn is_changed_by(&mut self, what: &str, ended: &Ended) -> bool {
        let mut changes = self.changes();
        let is_lock = |path: &Path| {
            let of_history = path.parent().is_some_and(|at| at.ends_with("history"));
            path.ends_with("lock") && !of_history
        };
        changes.retain(|(path, how)| !(is_lock(path) && *how == "appeared"));
        if !changes.is_empty() {
            self.fail(&format!("{what} and changed {changes:?}"), &[ended]);
        }
        !changes.is_empty()
    }

    fn changes(&self) -> Vec<(PathBuf, &'static str)> {
        self.before.changes(&Snapshot::of(self.copy.path()))
    }

    /// Whether the outputs name what is damaged. The temporary directory's own name does not count.
    fn is_named_in(&self, ended: &Ended) -> bool {
        let data = self.copy.path().display().to_string();
        let text = format!("{}\n{}", ended.stdout, ended.stderr).replace(&data, "DATA");
        self.case.is_named_in(&text)
    }

    fn fail(&mut self, what: &str, outputs: &[&Ended]) {
        let outputs = outputs.iter().map(|ended| {
            let (stdout, stderr) = (shortened(&ended.stdout), shortened(&ended.stderr));
            format!("\n    exit {:?}\n{stdout}{stderr}", ended.code)
        });
        let what = format!("{what}{}", outputs.collect::<String>());
        let data = self.copy.path().display().to_string();
        self.failures.push(what.replace(&data, "DATA"));
    }
}

/// Every stream is as it was acknowledged, without what is lost; panics otherwise.
pub(super) fn is_whole_but_for(lost: &[Lost], server: &Encke, base: &Base) {
    for stream in &base.streams {
        let is_lost = |sequence: u64| {
            let mut lost = lost.iter().filter(|lost| lost.log == stream.log);
            lost.any(|lost| (lost.from..=lost.upto).contains(&sequence))
        };
        let head = server.ask("HEAD", &path(&stream.name), &[], b"");
        let head = (head.status, head.field("Stream-Closed") == Some("true"));
        if stream.end == End::Deleted {
            // Of a deleted stream the sequences are not known.
            if !lost.iter().any(|lost| lost.log == stream.log) {
                assert_eq!(head, (404, false), "{} was deleted", stream.name);
            }
            continue;
        }
        let kept = stream
            .records
            .iter()
            .filter(|record| !is_lost(record.sequence));
        let kept: Vec<_> = kept.collect();
        if head.0 == 404 && kept.is_empty() && is_lost(stream.made) {
            continue;
        }
        let content = content(server, stream);
        if content != stream.content(kept.iter().copied()) {
            let there = |record: &&super::base::Record| content.contains(&record.body);
            let sequences = |records: Vec<&super::base::Record>| -> Vec<u64> {
                records.iter().map(|record| record.sequence).collect()
            };
            let (served, missing): (Vec<_>, Vec<_>) = stream.records.iter().partition(there);
            panic!(
                "{} in log {}: served {:?}, not served {:?}, due {:?}",
                stream.name,
                stream.log,
                sequences(served),
                sequences(missing),
                sequences(kept)
            );
        }
        match stream.end {
            End::Closed(sequence) if is_lost(sequence) => {}
            end => assert_eq!(head.1, end != End::Open, "{} is closed or not", stream.name),
        }
    }
}

/// All that a stream holds; messages of JSON with commas between them.
fn content(server: &Encke, stream: &Stream) -> String {
    let mut connection = server.connect();
    let mut parts: Vec<String> = Vec::new();
    let mut offset = "-1".to_owned();
    loop {
        let target = format!("{}?offset={offset}", path(&stream.name));
        let page = connection.ask("GET", &target, &[], b"");
        let text = String::from_utf8_lossy(&page.body).into_owned();
        assert_eq!(page.status, 200, "{}: {}", stream.name, shortened(&text));
        let text = if stream.is_json {
            let inner = text
                .strip_prefix('[')
                .and_then(|text| text.strip_suffix(']'));
            inner.expect("an array").to_owned()
        } else {
            text
        };
        if !text.is_empty() {
            parts.push(text);
        }
        if page.field("Stream-Up-To-Date") == Some("true") {
            return parts.join(if stream.is_json { "," } else { "" });
        }
        let next = page.field("Stream-Next-Offset");
        next.expect("a place to go on at").clone_into(&mut offset);
    }
}

/// A stream takes one more record, which is read behind the others.
fn takes_a_record(server: &Encke, base: &Base) {
    let is_open = |stream: &&Stream| stream.is_json && stream.end == End::Open;
    let stream = base.streams.iter().find(is_open).expect("there is one");
    let answer = server.ask("POST", &path(&stream.name), &[JSON], b"4711");
    assert_eq!(answer.status, 204, "{answer:?}");
    assert!(content(server, stream).ends_with(",4711"));
}

/// What a report says is lost.
pub(super) fn losses(repaired: &Ended) -> Vec<Lost> {
    let report: Value = serde_json::from_str(&repaired.stdout).expect("a report is JSON");
    let mut all = Vec::new();
    for log in report["logs"].as_array().expect("logs") {
        let directory = Path::new(log["directory"].as_str().expect("a path"));
        let name = directory.file_name().expect("a name").to_string_lossy();
        for loss in log["losses"].as_array().expect("losses") {
            let number = |key: &str| loss[key].as_u64().expect("a sequence");
            all.push(Lost {
                log: index_of_log(&name),
                from: number("from"),
                upto: number("upto"),
            });
        }
    }
    all
}

pub(super) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}

pub(super) fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 2_000;
    let mut short: String = text.chars().take(CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// The exit codes of a check and of a dry repair of a directory that nothing is wrong with.
const SOUND: (Option<i32>, Option<i32>) = (Some(0), Some(0));
