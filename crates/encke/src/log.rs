//! `encke log`: checks, prints and repairs a log that no server has open; `backup_commands.rs` has what saves and restores one.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytesize::ByteSize;
use clap::{Args, Subcommand};
use encke_clock::WallTime;
use encke_log::{
    CheckReport, DumpFilter, Files, FrameView, Log, OpenError, Options, Progress, RepairReport,
};
use encke_stream::{Change, Extras, KIND_CHANGE, log_of};
use serde::Serialize;
use serde_json::{Value, json};

use crate::backup_commands::{self, BackupArgs, BackupsArgs, RestoreArgs};
use crate::config::whole_number;
use crate::failure::{Code, Failed, say};
use crate::progress_line::ProgressLine;
use crate::standard_output::{print, print_json, printed};

/// What `encke log` can do.
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Verify every record, every position and every table of history
    #[command(
        long_about = "Verify every record, every position and every table of history.\n\n\
            No server may be running on the directory. Nothing is changed. Reads everything, and reports its \
            progress on standard error.",
        after_help = "Exit codes: 0 no damage; 1 damage was found, and the output names it; 2 the command line is wrong; \
            3 the directory can't be used: it has no log, a server is running on it, or it is of another version."
    )]
    Check(CheckArgs),
    /// Print records as JSON lines, oldest first
    #[command(
        long_about = "Print records as JSON lines, oldest first.\n\n\
            Without --stream, prints the global order, as far back as segments are kept. With --stream, prints all of \
            one stream, from history too. No server may be running on the directory. Nothing is changed.\n\n\
            A line has: log (if DIR has several), sequence, time, kind, streams (their numbers); for records of \
            Encke, change (create, append, delete and so on) and fields (such as the name of a created stream, or \
            the producer of an append); and the data, as text, or as base64 if it is not UTF-8. Deleted records \
            that are not reclaimed yet are printed, too.",
        after_help = "Exit codes: 0 all records were printed; 1 damage was found, after everything before it was printed; \
            2 the command line is wrong; 3 the directory can't be used."
    )]
    Dump(DumpArgs),
    /// Drop what is damaged, so that the log opens again
    #[command(
        long_about = "Drop what is damaged, so that the log opens again.\n\n\
            Without --accept-loss, prints exactly what would be dropped and changes nothing. With --accept-loss, prints \
            the same, and then drops it. Files that are dropped whole stay beside the log under another name that \
            ends in .dropped. No server may be running on the directory.",
        after_help = "Exit codes: 0 nothing to repair, or repaired; 1 a repair would drop something, and --accept-loss was not \
            given; 2 the command line is wrong; 3 the directory can't be used."
    )]
    Repair(RepairArgs),
    /// Free the space of removed records
    #[command(
        long_about = "Free the space of removed records.\n\n\
            A server frees it gradually, while new records come. This sorts all of history anew, without the records that are removed; it reads and \
            writes all of it, and needs as much free space as what stays. No server may be running on the directory.",
        after_help = "Exit codes: 0 done; 1 a record can't be read; 2 the command line is wrong; 3 the directory can't be used."
    )]
    Compact(CompactArgs),
    /// Copy the data of a running server to a directory or a bucket
    #[command(
        long_about = "Copy the data of a running server to a directory or a bucket.\n\n\
            Asks the server that runs on DIR for a snapshot of all its logs, and stores what earlier backups in TO do not have. Appends do not \
            wait. A backup is there as a whole or not at all. TO is a directory, or s3://BUCKET/PREFIX with AWS_ACCESS_KEY_ID, \
            AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION and, for what is compatible with S3, AWS_ENDPOINT_URL. Run it as the user of the \
            server or as root, for example every minute.",
        after_help = "Exit codes: 0 the backup is stored; 1 it is not, or old ones could not be removed; 2 the command line is wrong; 3 no server runs on DIR."
    )]
    Backup(BackupArgs),
    /// List the backups in a directory or a bucket, or verify them
    Backups(BackupsArgs),
    /// Write a backup into an empty directory
    #[command(
        long_about = "Write a backup into an empty directory.\n\n\
            Each piece is compared with its hash. `encke serve --data DIR` then continues at the moment of the backup.",
        after_help = "Exit codes: 0 the data is there; 1 it is not; 2 the command line is wrong; 3 DIR is not empty."
    )]
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Directory of the data, as given to `encke serve --data`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Print no progress on standard error
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Args)]
struct DumpArgs {
    /// Directory of the data, as given to `encke serve --data`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// First record to print
    #[arg(long, value_name = "SEQ", default_value_t = 1, value_parser = whole_number)]
    from: u64,

    /// Only records of the stream with this number
    #[arg(long, value_name = "NO", value_parser = stream_number)]
    stream: Option<u64>,
}

#[derive(Debug, Args)]
struct RepairArgs {
    /// Directory of the data, as given to `encke serve --data`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Drop what cannot be saved; otherwise nothing is changed
    #[arg(long)]
    accept_loss: bool,

    /// Print the report as JSON at the end; what is dropped is printed on standard error before
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CompactArgs {
    /// Directory of the data, as given to `encke serve --data`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

fn stream_number(text: &str) -> anyhow::Result<u64> {
    text.parse().map_err(|_| {
        anyhow::anyhow!(
            "must be the number of a stream, which `encke log dump DIR` prints on the line that creates the stream"
        )
    })
}

pub(crate) fn log(args: &LogArgs) -> Result<ExitCode, Failed> {
    match &args.command {
        LogCommand::Check(args) => check(args),
        LogCommand::Dump(args) => dump(args),
        LogCommand::Repair(args) => repair(args),
        LogCommand::Compact(args) => compact(args),
        LogCommand::Backup(args) => backup_commands::backup(args),
        LogCommand::Backups(args) => backup_commands::backups(args),
        LogCommand::Restore(args) => backup_commands::restore(args),
    }
}

/// The logs in a data directory: the directory itself, or each directory in it that holds a log, sorted by name.
fn logs(directory: &Path) -> Result<Vec<PathBuf>, Failed> {
    let unusable = |e: std::io::Error| {
        let name = directory.display();
        Code::Data.with(anyhow::Error::new(e).context(format!("{name} can't be read")))
    };
    let several = encke_log::logs_in(directory).map_err(|error| Code::Data.with(error))?;
    if several.len() > 1 {
        return Ok(several);
    }
    if Files::holds_log(directory).map_err(unusable)? {
        return Ok(vec![directory.to_owned()]);
    }
    let mut logs = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unusable)? {
        let path = entry.map_err(unusable)?.path();
        if path.is_dir() && Files::holds_log(&path).map_err(unusable)? {
            logs.push(path);
        }
    }
    logs.sort();
    if logs.is_empty() {
        let directory = directory.to_owned();
        return Err(failed(OpenError::NoLog { directory }));
    }
    Ok(logs)
}

fn failed(error: OpenError) -> Failed {
    match error {
        OpenError::Locked { directory } => Code::Data.with(anyhow::anyhow!(
            "{} is in use by a server that is running: stop it first",
            directory.display()
        )),
        OpenError::NoLog { directory } => Code::Data.with(anyhow::anyhow!(
            "{} holds no log: give the directory of `encke serve --data`, which is encke-data by default",
            directory.display()
        )),
        error @ OpenError::Damaged { .. } => Code::Running.with(error),
        error => Code::Data.with(error),
    }
}

fn check(args: &CheckArgs) -> Result<ExitCode, Failed> {
    let mut sound = true;
    let mut reports = Vec::new();
    for log in logs(&args.directory)? {
        let mut progress_line = ProgressLine::new(args.quiet);
        let report = encke_log::check(&log, &mut |progress| {
            progress_line.show(|| progress_text(&log, progress));
        });
        progress_line.end();
        let report = report.map_err(failed)?;
        sound &= report.problems.is_empty();
        if args.json {
            reports.push(check_json(&log, &report));
        } else {
            print(&check_text(&log, &report))?;
        }
    }
    if args.json {
        print_json(&json!({ "sound": sound, "logs": reports }))?;
    }
    Ok(ExitCode::from(u8::from(!sound)))
}

fn progress_text(log: &Path, progress: Progress<'_>) -> String {
    match progress {
        Progress::Segments {
            name,
            done_bytes,
            total_bytes,
        } => format!(
            "{}: segments {} of {} MiB, in {name}",
            log.display(),
            done_bytes >> 20,
            total_bytes >> 20
        ),
        Progress::History { entries } => {
            format!("{}: history, {entries} entries read", log.display())
        }
    }
}

fn check_text(log: &Path, report: &CheckReport) -> String {
    let mut text = format!("{}\n", log.display());
    let mut line = |what: String| text.push_str(&format!("  {what}\n"));
    let range = report
        .sequences
        .map_or_else(String::new, |(first, last)| format!(", {first} to {last}"));
    line(format!(
        "{} records in {} segments{range}",
        report.records, report.segments
    ));
    line(format!(
        "{} records, {} states and {} floors in history, which has everything up to record {}",
        report.history_records, report.states, report.floors, report.history_upto
    ));
    if report.torn {
        line("the last batch is torn, as a crash leaves it; the next start cuts it off".to_owned());
    }
    for problem in &report.problems {
        line(format!("damaged: {problem}"));
    }
    match report.problems.len() {
        0 => line("all is sound".to_owned()),
        n => line(format!(
            "{n} problems; `encke log repair {}` says what it would cost to drop what is damaged",
            log.display()
        )),
    }
    text
}

fn check_json(log: &Path, report: &CheckReport) -> Value {
    let problems: Vec<_> = report
        .problems
        .iter()
        .map(|problem| {
            json!({
                "file": problem.file.display().to_string(),
                "position": problem.position,
                "sequence": problem.sequence,
                "what": problem.what,
            })
        })
        .collect();
    json!({
        "directory": log.display().to_string(),
        "sound": problems.is_empty(),
        "segments": report.segments,
        "records": report.records,
        "first_sequence": report.sequences.map(|(first, _)| first),
        "last_sequence": report.sequences.map(|(_, last)| last),
        "torn": report.torn,
        "history_records": report.history_records,
        "states": report.states,
        "floors": report.floors,
        "history_upto": report.history_upto,
        "checkpoint_upto": report.checkpoint_upto,
        "problems": problems,
    })
}

/// One record as a line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<&'a str>,
    sequence: u64,
    time: String,
    kind: u8,
    streams: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
}

fn dump(args: &DumpArgs) -> Result<ExitCode, Failed> {
    let filter = DumpFilter {
        from: args.from,
        stream: args.stream,
    };
    let logs = logs(&args.directory)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let of_stream = |log: usize| args.stream.is_none_or(|no| log_of(no) == log);
    for (index, log) in logs.iter().enumerate() {
        if logs.len() > 1 && !of_stream(index) {
            continue;
        }
        let name = log.file_name().and_then(|name| name.to_str());
        let name = name.filter(|_| logs.len() > 1);
        let mut written = Ok(());
        let dumped = encke_log::dump(log, filter, &mut |view| {
            written = write_line(&mut out, name, view);
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        let written = written.and_then(|()| out.flush());
        let is_read = written.is_ok();
        printed(written)?;
        if !is_read {
            return Ok(ExitCode::SUCCESS);
        }
        let report = dumped.map_err(failed)?;
        if args.stream.is_none() && report.oldest > args.from.max(1) {
            say(format_args!(
                "{}: the global order is kept from record {} on; what came before is printed by --stream\n",
                log.display(),
                report.oldest
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_line(out: &mut impl Write, log: Option<&str>, view: FrameView<'_>) -> std::io::Result<()> {
    let change = Some(view.payload).filter(|_| view.kind == KIND_CHANGE);
    let change = change.and_then(|payload| Change::decode(payload).ok());
    let (change, data) = match change {
        Some((change, data)) => (Some(change), data),
        None => (None, view.payload),
    };
    let (change, fields) = change.map_or((None, None), |change| named(&change));
    let text = std::str::from_utf8(data).ok();
    let line = Line {
        log,
        sequence: view.sequence,
        time: time(view.time),
        kind: view.kind,
        streams: view.streams.iter().map(|(stream, _)| stream).collect(),
        change,
        fields,
        text,
        base64: text.is_none().then(|| BASE64_STANDARD.encode(data)),
    };
    serde_json::to_writer(&mut *out, &line)?;
    out.write_all(b"\n")
}

/// What kind of change it is, and what came with it.
fn named(change: &Change<'_>) -> (Option<String>, Option<Value>) {
    match serde_json::to_value(change) {
        Ok(Value::String(name)) => (Some(name.to_lowercase()), None),
        Ok(Value::Object(map)) => {
            let (name, mut fields) = map.into_iter().next().unzip();
            if let Some(Value::Object(fields)) = &mut fields
                && let Some(extras) = change.extras()
                && *extras != Extras::default()
            {
                fields.insert("extras".into(), json!(extras));
            }
            (name.map(|name: String| name.to_lowercase()), fields)
        }
        _ => (None, None),
    }
}

/// A moment as people write it; in milliseconds since 1970 when it is none that people know.
fn time(at: WallTime) -> String {
    let known = i64::try_from(at.as_ms())
        .ok()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    known.map_or_else(|| at.as_ms().to_string(), |time| time.to_string())
}

fn repair(args: &RepairArgs) -> Result<ExitCode, Failed> {
    let mut refused = false;
    let mut reports = Vec::new();
    for log in logs(&args.directory)? {
        // Said before anything is done, so that it is known even if the repair fails half way.
        let mut say_plan = |plan: &RepairReport| {
            let text = plan_text(&log, plan, args.accept_loss);
            match args.json {
                true => std::io::stderr().write_all(text.as_bytes()).is_ok(),
                false => print(&text).is_ok(),
            }
        };
        let report = match args.accept_loss {
            true => encke_log::repair(&log, &mut say_plan),
            false => encke_log::plan_repair(&log, &mut |plan| {
                say_plan(plan);
            }),
        };
        let report = report.map_err(failed)?;
        refused |= report.needed && !report.done;
        if args.json {
            reports.push(repair_json(&log, &report));
        } else if report.done {
            print(&format!("{}: repaired\n", log.display()))?;
        } else if !report.needed {
            print(&format!("{}: there is nothing to repair\n", log.display()))?;
        }
    }
    if args.json {
        print_json(&json!({ "refused": refused, "logs": reports }))?;
    }
    Ok(ExitCode::from(u8::from(refused)))
}

fn compact(args: &CompactArgs) -> Result<ExitCode, Failed> {
    // What the server keeps for the order is not for this command to remove.
    let options = Options {
        done_bytes_max: u64::MAX,
        ..Options::default()
    };
    let mut reports = Vec::new();
    for log in logs(&args.directory)? {
        let opened = Log::open(&log, options.clone(), &mut |_| {}).map_err(failed)?;
        let before = opened.health().history_bytes;
        opened
            .reclaim()
            .map_err(|error| Code::Running.with(error))?;
        opened.close().map_err(|error| Code::Running.with(error))?;
        // Tables that nothing needs any more are gone when it is closed.
        let opened = Log::open(&log, options.clone(), &mut |_| {}).map_err(failed)?;
        let after = opened.health().history_bytes;
        opened.close().map_err(|error| Code::Running.with(error))?;
        if args.json {
            reports.push(json!({ "log": log, "bytes_before": before, "bytes_after": after }));
        } else {
            let (before, after) = (ByteSize(before), ByteSize(after));
            print(&format!(
                "{}: history has {after}, before {before}\n",
                log.display()
            ))?;
        }
    }
    if args.json {
        print_json(&json!({ "logs": reports }))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn plan_text(log: &Path, plan: &RepairReport, accept_loss: bool) -> String {
    let (would, name) = (if accept_loss { "" } else { "would be " }, log.display());
    let mut text = format!("{name}\n");
    for losses in plan.losses.chunk_by(|a, b| a.what == b.what) {
        let ranges: Vec<String> = losses
            .iter()
            .map(|loss| match loss.from == loss.upto {
                true => loss.from.to_string(),
                false => format!("{} to {}", loss.from, loss.upto),
            })
            .collect();
        let what = &losses[0].what;
        text += &format!("  records {} {would}dropped: {what}\n", ranges.join(", "));
    }
    for note in &plan.notes {
        text += &format!("  {note}\n");
    }
    for file in &plan.set_aside {
        text += &format!("  a file {would}kept as {}\n", file.display());
    }
    if !accept_loss {
        text += "  nothing was changed; --accept-loss does it\n";
    }
    text
}

fn repair_json(log: &Path, report: &RepairReport) -> Value {
    let losses: Vec<_> = report
        .losses
        .iter()
        .map(|loss| json!({ "from": loss.from, "upto": loss.upto, "what": loss.what }))
        .collect();
    let aside: Vec<_> = report
        .set_aside
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    json!({
        "directory": log.display().to_string(),
        "needed": report.needed,
        "done": report.done,
        "losses": losses,
        "set_aside": aside,
        "notes": report.notes,
    })
}

#[cfg(test)]
mod tests {
    use encke_stream::{AckLevel, Lifetime, Retention};

    use super::*;

    /// Scripts read the fields that a dump shows.
    #[test]
    fn a_dump_shows_the_end_of_a_stream_in_milliseconds() {
        let create = Change::Create {
            name: "a",
            content_type: "text/plain",
            lifetime: Lifetime::Until {
                at: WallTime::from_ms(5),
            },
            ack: AckLevel::Synced,
            retention: Retention::default(),
            fork: None,
            floor: 0,
            closed: false,
            units: 0,
            extras: Extras {
                metadata: Some("{}"),
                ..Extras::default()
            },
            account: None,
        };
        let (change, fields) = named(&create);
        assert_eq!(change.as_deref(), Some("create"));
        let fields = fields.unwrap();
        assert_eq!(fields["lifetime"], json!({"Until": {"at_ms": 5}}));
        assert_eq!(fields["extras"]["metadata"], "{}");
        assert_eq!(time(WallTime::from_ms(5)), "1970-01-01T00:00:00.005Z");
    }
}
