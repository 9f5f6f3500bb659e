//! `encke import`: copies streams from another server, and looks up what offsets have become.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use encke_import::{
    BearerToken, Import, ImportError, ImportSettings, JOBS_MAX, MappedOffset, OffsetMap,
    ResolveError, ServerAccess, SourceRoot, StreamTask, list, tasks,
};
use encke_stream::Offset;
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::client_args::ClientArgs;
use crate::config::duration;
use crate::failure::{Code, Failed, say};
use crate::import_report::{ProgressLines, report_text};
use crate::standard_output::{print, print_json};

/// The arguments of `encke import`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    long_about = "Copy streams from any server of the protocol to a running Encke, and follow them until clients have moved.\n\n\
        Each message is copied once and in order, however often the command is stopped or killed: run it again, and it goes on. The \
        directory of the state (--state) has the map from offsets of the source to those of the destination; keep it. A run that finds \
        everything copied takes only what is new.",
    after_help = "ENCKE_IMPORT_TOKEN and ENCKE_IMPORT_TO_TOKEN have the tokens where no file is given.\n\n\
        Exit codes: 0 everything is copied, and the same if --verify was given; 1 something is missing, and the output names it; 2 the \
        command line is wrong; 3 the directory of the state can't be used."
)]
pub(crate) struct ImportArgs {
    #[command(subcommand)]
    command: Option<ImportCommand>,

    #[command(flatten)]
    copy: CopyArgs,
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    /// Print the offset of the destination that an offset of the source has become
    #[command(
        after_help = "Exit codes: 0 the offset is printed; 1 the source did not give this offset to the import, and the nearest before \
            it is printed, or it is behind the end of what was copied, or the source can't be asked; 2 the command line is wrong; 3 the \
            directory of the state can't be used."
    )]
    Offset(OffsetArgs),
}

#[derive(Args, Debug)]
struct CopyArgs {
    /// Address of the streams of the source, such as `https://streams.example/v1/stream`, or of one stream
    #[arg(value_name = "URL", required = true)]
    source: Option<String>,

    /// Streams to copy, by name, path or address; without any, and without --streams and --list, URL is the stream
    #[arg(value_name = "STREAM")]
    names: Vec<String>,

    /// File with further streams, one in each line, or - for standard input
    #[arg(long, value_name = "FILE")]
    streams: Option<PathBuf>,

    /// Also copy all streams whose names begin with PREFIX, if the source is an Encke: others have no list
    #[arg(long, value_name = "PREFIX", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    list: Option<String>,

    #[command(flatten)]
    access: SourceArgs,

    /// Address of the Encke to copy to
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:4437")]
    to: String,

    /// File with the bearer token for the destination
    #[arg(long, value_name = "FILE")]
    to_token_file: Option<PathBuf>,

    /// What stands before the names of all streams at the destination, such as old/
    #[arg(
        long,
        value_name = "PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,

    #[command(flatten)]
    state: StateArg,

    /// Go on with what the source gets, until SIGINT or SIGTERM; then copy what the source has had until that moment
    #[arg(long)]
    follow: bool,

    /// Compare what both sides have of each stream at the end
    #[arg(long)]
    verify: bool,

    /// Streams that are copied at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = jobs)]
    jobs: usize,

    /// How long to try again without progress, when a server is overloaded or does not answer
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    patience: Duration,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Print no progress on standard error
    #[arg(long)]
    quiet: bool,
}

#[derive(Args, Debug)]
struct SourceArgs {
    /// File with the bearer token for the source. It is read again when the token is refused
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Header field of all requests to the source, such as 'X-Api-Key: k', or @FILE with one in each line. May be repeated
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<String>,

    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Args, Debug)]
struct StateArg {
    /// Directory of the state and of the map of offsets; made if it is missing
    #[arg(long = "state", value_name = "DIR", default_value = "encke-import")]
    directory: PathBuf,
}

#[derive(Args, Debug)]
struct OffsetArgs {
    /// Name of the stream at the destination
    #[arg(value_name = "STREAM")]
    stream: String,

    /// Offset that the source gave
    #[arg(value_name = "OFFSET", allow_hyphen_values = true)]
    offset: String,

    #[command(flatten)]
    state: StateArg,

    /// Ask the source how many messages it has behind an offset that is not in the map
    #[arg(long)]
    resolve: bool,

    #[command(flatten)]
    access: SourceArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Copies streams, or looks up an offset.
pub(crate) fn import(args: &ImportArgs) -> Result<ExitCode, Failed> {
    match &args.command {
        None => copy(&args.copy),
        Some(ImportCommand::Offset(args)) => offset(args),
    }
}

fn copy(args: &CopyArgs) -> Result<ExitCode, Failed> {
    let mut settings = settings(args).map_err(|error| Code::Usage.with(error))?;
    settings.tasks = streams(args, &settings)?;
    let import = Import::new(settings).map_err(|error| {
        let code = match error {
            ImportError::Setting(_) => Code::Usage,
            ImportError::State { .. } => Code::Data,
        };
        code.with(error)
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    if args.follow {
        for signal in [SIGINT, SIGTERM] {
            // The second one ends the program; the state is whole at any moment.
            let second = signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop));
            let first = signal_hook::flag::register(signal, Arc::clone(&stop));
            second.and(first).context("signals can't be handled")?;
        }
    }
    let lines = ProgressLines::start(import.progress(), args.quiet);
    let report = import.run(&stop);
    lines.end();
    match args.json {
        true => print_json(&report)?,
        false => print(&report_text(&report))?,
    }
    Ok(match report.complete {
        true => ExitCode::SUCCESS,
        false => Code::Running.into(),
    })
}

/// All but the streams.
fn settings(args: &CopyArgs) -> anyhow::Result<ImportSettings> {
    Ok(ImportSettings {
        tasks: Vec::new(),
        source: args.access.of_source()?,
        destination: ServerAccess {
            token: token(args.to_token_file.as_deref(), TO_TOKEN)?,
            fields: Vec::new(),
        },
        client: args.access.client.rules(),
        state: args.state.directory.clone(),
        jobs: args.jobs,
        follow: args.follow,
        verify: args.verify,
        patience: args.patience,
    })
}

/// The streams to copy. The source is asked only if it has to list them.
fn streams(args: &CopyArgs, settings: &ImportSettings) -> Result<Vec<StreamTask>, Failed> {
    let usage = |error: anyhow::Error| Code::Usage.with(error);
    let source = args.source.as_deref().unwrap_or_default();
    let source = SourceRoot::parse(source).map_err(|error| usage(error.into()))?;
    let to = SourceRoot::parse_destination(&args.to)
        .context("--to is wrong")
        .map_err(usage)?;
    let mut names = args.names.clone();
    if let Some(file) = &args.streams {
        names.extend(lines(file).context("--streams is wrong").map_err(usage)?);
    }
    if let Some(prefix) = &args.list {
        let listed = list(
            &source,
            prefix,
            &settings.source,
            &settings.client,
            settings.patience,
        );
        names.extend(listed.map_err(|error| Code::Running.with(error))?);
    }
    let named = !names.is_empty() || args.streams.is_some() || args.list.is_some();
    let tasks = tasks(&source, named.then_some(&names), &args.prefix, &to);
    tasks.map_err(|error| usage(error.into()))
}

impl SourceArgs {
    fn of_source(&self) -> anyhow::Result<ServerAccess> {
        let mut fields = Vec::new();
        for text in &self.header {
            match text.strip_prefix('@') {
                None => fields.push(field(text).context("--header is wrong")?),
                Some(file) => {
                    for line in lines(Path::new(file)).context("--header is wrong")? {
                        let parsed = field(&line).map_err(|_| {
                            // Not shown: it may be a secret.
                            anyhow::anyhow!("--header is wrong: {file} must have a name and a value in each line, such as X-Api-Key: k")
                        });
                        fields.push(parsed?);
                    }
                }
            }
        }
        Ok(ServerAccess {
            token: token(self.token_file.as_deref(), TOKEN)?,
            fields,
        })
    }
}

/// The token of a file, or of a variable.
fn token(file: Option<&Path>, variable: &str) -> anyhow::Result<Option<BearerToken>> {
    let token = match (file, std::env::var(variable)) {
        (Some(file), _) => BearerToken::File(file.to_owned()),
        (None, Ok(value)) => BearerToken::Value(value),
        (None, Err(std::env::VarError::NotPresent)) => return Ok(None),
        (None, Err(_)) => bail!("the variable {variable} is not UTF-8"),
    };
    if let Err(why) = token.authorization() {
        let of_variable = file
            .is_none()
            .then(|| format!(" of the variable {variable}"));
        bail!("{why}{}", of_variable.unwrap_or_default());
    }
    Ok(Some(token))
}

fn field(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text
        .split_once(':')
        .context("must be a name and a value, such as X-Api-Key: k, or @FILE")?;
    let name = name.trim();
    ensure!(!name.is_empty(), "the name of a field is missing");
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// The lines of a file, or of standard input, but for empty ones and comments.
fn lines(file: &Path) -> anyhow::Result<Vec<String>> {
    let mut text = String::new();
    let read = match file.as_os_str() == "-" {
        true => std::io::stdin().lock().read_to_string(&mut text).map(drop),
        false => encke_files::read_text(file).map(|read| text = read),
    };
    read.with_context(|| format!("{} can't be read", file.display()))?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}

fn jobs(text: &str) -> anyhow::Result<usize> {
    let number = text
        .parse()
        .ok()
        .filter(|jobs| (1..=JOBS_MAX).contains(jobs));
    number.with_context(|| format!("must be a whole number from 1 to {JOBS_MAX}"))
}

/// Looks up an offset.
fn offset(args: &OffsetArgs) -> Result<ExitCode, Failed> {
    let directory = &args.state.directory;
    let map = OffsetMap::read(directory, &args.stream).map_err(|error| Code::Data.with(error))?;
    let map = map.ok_or_else(|| {
        Code::Usage.with(anyhow::anyhow!(
            "{} has no map of a stream {:?}: --state is the directory of the import, and the stream is named as at the destination",
            directory.display(),
            args.stream
        ))
    })?;
    let mut found = map.find(&args.offset);
    if args.resolve && matches!(found, MappedOffset::Before { .. }) {
        let access = args
            .access
            .of_source()
            .map_err(|error| Code::Usage.with(error))?;
        let resolved = map.resolve(&args.offset, &access, &args.access.client.rules(), &inside);
        found = resolved.map_err(|error| {
            let code = match error {
                ResolveError::Access(_) => Code::Usage,
                _ => Code::Running,
            };
            code.with(error)
        })?;
    }
    print_offset(args, &found)
}

/// Prints what was found.
fn print_offset(args: &OffsetArgs, found: &MappedOffset) -> Result<ExitCode, Failed> {
    let asked = &args.offset;
    let (json, text, note) = match found {
        MappedOffset::Exact(offset) => (
            json!({ "offset": offset, "exact": true }),
            Some(offset),
            None,
        ),
        MappedOffset::Before { source, offset } => (
            json!({ "offset": offset, "exact": false, "of": source }),
            Some(offset),
            Some(format!(
                "the source did not give the offset {asked} to the import; this is the one of {source}, the nearest before it{}",
                match args.resolve {
                    true => "",
                    false => ". --resolve asks the source for the exact one",
                }
            )),
        ),
        MappedOffset::BeyondEnd { source } => (
            json!({ "offset": null, "exact": false, "of": source }),
            None,
            Some(format!(
                "the offset {asked} is behind the end of what was copied, {source}; import again to copy the rest"
            )),
        ),
    };
    match (args.json, text) {
        (true, _) => print(&format!("{json}\n"))?,
        (false, Some(offset)) => print(&format!("{offset}\n"))?,
        (false, None) => {}
    }
    Ok(match note {
        None => ExitCode::SUCCESS,
        Some(note) => {
            say(format_args!("encke: {note}\n"));
            Code::Running.into()
        }
    })
}

/// The offset that is so many messages, or bytes, inside the last record before an offset.
fn inside(behind: &str, units: u64) -> Option<String> {
    let behind: Offset = behind.parse().ok()?;
    let begin = Offset {
        sequence: behind.sequence.checked_sub(1)?,
        units: u32::try_from(units).ok()?,
    };
    (behind.units == 0).then(|| begin.to_string())
}

/// The variables with the tokens.
const TOKEN: &str = "ENCKE_IMPORT_TOKEN";
const TO_TOKEN: &str = "ENCKE_IMPORT_TO_TOKEN";
