//! `encke log backup`, `backups` and `restore`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use encke_backup::{
    BackupError, BackupName, BucketAccess, RemovalObstacle, Repository, StoredPieces, back_up,
};
use encke_clock::WallTime;
use encke_log::LayoutError;
use serde_json::json;

use crate::client_args::ClientArgs;
use crate::config::duration;
use crate::failure::{Code, Failed, say};
use crate::progress_line::ProgressLine;
use crate::standard_output::{print, print_json};

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// Directory of the data, as given to `encke serve --data`
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// Where backups are: a directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "TO")]
    to: String,

    /// Remove all backups but the last N that are whole
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,

    /// Read each stored piece again at least once in this time
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = duration)]
    verify_within: Duration,

    #[command(flatten)]
    client: ClientArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Print no progress on standard error
    #[arg(long)]
    quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BackupsArgs {
    /// Where backups are: a directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "FROM")]
    from: String,

    /// Read each backup whole, and compare it with its hashes
    #[arg(long)]
    verify: bool,

    #[command(flatten)]
    client: ClientArgs,

    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Where backups are: a directory, or s3://BUCKET/PREFIX
    #[arg(value_name = "FROM")]
    from: String,

    /// Directory to write into, which must be empty or missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,

    /// The last backup that was begun then or before, such as 2026-11-26T16:15:00Z; otherwise the last one
    #[arg(long, value_name = "TIME", value_parser = WallTime::from_rfc3339)]
    at: Option<WallTime>,

    #[command(flatten)]
    client: ClientArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Print no progress on standard error
    #[arg(long)]
    quiet: bool,
}

pub(crate) fn backup(args: &BackupArgs) -> Result<ExitCode, Failed> {
    let repository = Repository::to_write(&args.to, &access(&args.client)).map_err(failed)?;
    let pieces = StoredPieces::examine(&repository, args.verify_within);
    let mut pieces = pieces.map_err(failed)?;
    let mut line = ProgressLine::new(args.quiet);
    let report = back_up(&args.directory, &mut pieces, &mut |done, all| {
        line.show(|| format!("{} of {}", ByteSize(done), ByteSize(all)));
    });
    line.end();
    let report = report.map_err(failed)?;
    let removed = pieces.finish(report.name, args.keep).map_err(|error| {
        let failed = failed(error);
        let stored = format!(
            "the backup {} is stored, but old ones were not removed",
            report.name
        );
        failed.code.with(failed.error.context(stored))
    })?;
    if report.damaged > 0 {
        say(format_args!(
            "the last {} of the backups before it can't be read: `encke log backups` says why\n",
            report.damaged
        ));
    }
    if pieces.unsound() > 0 {
        say(format_args!(
            "{} stored pieces were missing or damaged; this backup is whole, and has stored again the ones that it needs. \
             `encke log backups --verify` names the backups that lack others\n",
            pieces.unsound()
        ));
    }
    match removed.obstacle {
        None => {}
        Some(RemovalObstacle::Readers) => {
            say(format_args!(
                "old backups stay, because some are being read\n"
            ));
        }
        Some(RemovalObstacle::Damage) => say(format_args!(
            "pieces of old backups stay, because a backup that is kept can't be read\n"
        )),
    }
    if args.json {
        print_json(&json!({
            "name": report.name.to_string(),
            "bytes": report.bytes,
            "bytes_read": report.bytes_read,
            "bytes_stored": report.bytes_stored,
            "bytes_verified": pieces.read_bytes(),
            "unsound_pieces": pieces.unsound(),
            "damaged_backups": report.damaged.max(removed.damaged),
            "removed_backups": removed.backups,
            "removed_pieces": removed.pieces,
            "kept_because": removed.obstacle.map(|obstacle| match obstacle {
                RemovalObstacle::Readers => "readers",
                RemovalObstacle::Damage => "damage",
            }),
        }))?;
    } else {
        print(&format!(
            "{}: {} in all, {} read, {} stored; {} older backups removed\n",
            report.name,
            ByteSize(report.bytes),
            ByteSize(report.bytes_read),
            ByteSize(report.bytes_stored),
            removed.backups
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn backups(args: &BackupsArgs) -> Result<ExitCode, Failed> {
    let repository = Repository::to_read(&args.from, &access(&args.client)).map_err(failed)?;
    let mut sound = true;
    let mut listed = Vec::new();
    for name in repository.backups().map_err(failed)? {
        let problem = match look_at(&repository, name, args.verify) {
            Ok((bytes, upto)) => {
                if !args.json {
                    print(&format!(
                        "{name}  {}  up to record {upto:?}\n",
                        ByteSize(bytes)
                    ))?;
                }
                listed.push(json!({ "name": name.to_string(), "bytes": bytes, "upto": upto }));
                continue;
            }
            Err(problem) => problem,
        };
        // A storage that does not answer says nothing of a backup.
        if !matches!(problem, BackupError::Damaged(_)) {
            return Err(failed(problem));
        }
        sound = false;
        if !args.json {
            print(&format!("{name}  {problem}\n"))?;
        }
        listed.push(json!({ "name": name.to_string(), "problem": problem.to_string() }));
    }
    if args.json {
        print_json(&json!({ "sound": sound, "backups": listed }))?;
    }
    Ok(ExitCode::from(u8::from(!sound)))
}

/// The bytes of a backup, and the last record of each log.
fn look_at(
    repository: &Repository,
    name: BackupName,
    verify: bool,
) -> Result<(u64, Vec<u64>), BackupError> {
    let manifest = repository.manifest(name)?;
    if verify {
        repository.verify(&manifest)?;
    }
    Ok((manifest.bytes(), manifest.upto().collect()))
}

pub(crate) fn restore(args: &RestoreArgs) -> Result<ExitCode, Failed> {
    let repository = Repository::to_read(&args.from, &access(&args.client)).map_err(failed)?;
    let name = repository.backup_at(args.at).map_err(failed)?;
    let manifest = repository.manifest(name).map_err(failed)?;
    let mut line = ProgressLine::new(args.quiet);
    let report =
        encke_backup::restore(&repository, &manifest, &args.directory, &mut |done, all| {
            line.show(|| format!("{} of {}", ByteSize(done), ByteSize(all)));
        });
    line.end();
    let report = report.map_err(failed)?;
    if args.json {
        print_json(
            &json!({ "name": name.to_string(), "bytes": report.bytes, "upto": report.upto }),
        )?;
    } else {
        print(&format!(
            "{} has the backup of {name}: {}, up to record {:?}\n",
            args.directory.display(),
            ByteSize(report.bytes),
            report.upto
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn access(args: &ClientArgs) -> BucketAccess<'static> {
    BucketAccess {
        setting: &|name| std::env::var(name).ok(),
        client: args.rules(),
    }
}

fn failed(error: BackupError) -> Failed {
    let code = match error {
        BackupError::Place(_) => Code::Usage,
        BackupError::NotRunning { .. }
        | BackupError::Gone { .. }
        | BackupError::Layout(
            LayoutError::NotEmpty { .. }
            | LayoutError::InUse { .. }
            | LayoutError::Unfinished { .. },
        ) => Code::Data,
        _ => Code::Running,
    };
    code.with(error)
}
