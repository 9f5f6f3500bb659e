//! An import: several streams at a time, followed if that is wanted, and compared at the end.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use encke_client::ClientRules;

use crate::copy::StreamCopy;
use crate::copy_failure::CopyFailure;
use crate::follower::StreamFollower;
use crate::http_server::HttpServer;
use crate::imported_stream::{CopyStage, ImportedStream, locked};
use crate::progress::ImportProgress;
use crate::protocol_stream::ProtocolStream;
use crate::report::{Compared, CopyOutcome, ImportReport, StreamReport};
use crate::server_access::ServerAccess;
use crate::stream_list::StreamTask;
use crate::verify;

/// What an import is to do.
#[derive(Clone, Debug)]
pub struct ImportSettings {
    /// The streams, from [`tasks`](crate::tasks).
    pub tasks: Vec<StreamTask>,
    /// What the source wants of its clients.
    pub source: ServerAccess,
    /// What the destination wants of its clients.
    pub destination: ServerAccess,
    /// Whom to trust for https.
    pub client: ClientRules,
    /// The directory of the state, which is made if it is missing.
    pub state: PathBuf,
    /// How many streams are copied at a time, from 1 to [`JOBS_MAX`].
    pub jobs: usize,
    /// Whether to go on with what the source gets, until the import is stopped.
    pub follow: bool,
    /// Whether to compare the contents at the end.
    pub verify: bool,
    /// For how long something is tried without progress before it counts as failed.
    pub patience: Duration,
}

/// Why an import can't begin. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A setting can't be used.
    #[error("{0}")]
    Setting(String),
    /// The directory of the state can't be used.
    #[error("the directory of the state {path} can't be used: {why}", path = path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
}

/// An import that may begin.
#[derive(Debug)]
pub struct Import {
    settings: ImportSettings,
    source: Arc<HttpServer>,
    destination: Arc<HttpServer>,
    progress: Arc<ImportProgress>,
    /// Locked for as long as it is open.
    _lock: File,
}

impl Import {
    /// Checks the settings, and locks the directory of the state. No server is asked.
    ///
    /// # Errors
    /// What is wrong with a setting or the directory.
    pub fn new(settings: ImportSettings) -> Result<Self, ImportError> {
        let setting = |why: String| Err(ImportError::Setting(why));
        if !(1..=JOBS_MAX).contains(&settings.jobs) {
            return setting(format!("jobs must be from 1 to {JOBS_MAX}"));
        }
        let count = settings.tasks.len();
        if settings.follow && count > FOLLOWED_MAX {
            return setting(format!(
                "{count} streams can't be followed at a time, {FOLLOWED_MAX} can: follow them in several groups, or copy them again without --follow, which takes only what is new"
            ));
        }
        let server = |access: &ServerAccess, connections| {
            let server = HttpServer::new(access, &settings.client, connections);
            server.map(Arc::new).map_err(ImportError::Setting)
        };
        let source = server(&settings.source, settings.jobs)?;
        let destination = server(&settings.destination, settings.jobs)?;
        let lock = lock(&settings.state).map_err(|why| ImportError::State {
            path: settings.state.clone(),
            why,
        })?;
        Ok(Import {
            progress: Arc::new(ImportProgress::new(count)),
            source,
            destination,
            settings,
            _lock: lock,
        })
    }

    /// How far it is.
    pub fn progress(&self) -> Arc<ImportProgress> {
        Arc::clone(&self.progress)
    }

    /// Copies all streams. With `follow` it goes on until `stop` is set, and then copies what the sources have had until that moment.
    pub fn run(&self, stop: &AtomicBool) -> ImportReport {
        let begin = Instant::now();
        let streams: Vec<_> = self
            .settings
            .tasks
            .iter()
            .cloned()
            .map(ImportedStream::new)
            .collect();
        let streams = Arc::new(streams);
        self.each(&streams, &|stream| self.copy(stream));
        if self.settings.follow {
            self.follow(&streams, stop);
            // What the source had when it was told, and no long poll has brought.
            self.each(&streams, &|stream| {
                let mut stage = stream.stage();
                if let CopyStage::Current(copy) = &mut *stage
                    && !copy.is_complete()
                {
                    let result = copy.catch_up();
                    stage.settle(result, &self.progress);
                }
            });
        }
        let reports = self.each(&streams, &|stream| self.report(stream));
        let retries = self.progress.retries();
        ImportReport::new(reports, retries, begin.elapsed().as_secs_f64())
    }

    /// Copies a stream up to the end that it has.
    fn copy(&self, stream: &ImportedStream) {
        let mut stage = stream.stage();
        let (from, to) = self.ends(&stream.task);
        *stage = match StreamCopy::find(&stream.task, from, to, &self.settings.state) {
            Ok(copy) => CopyStage::Current(Box::new(copy)),
            Err(error) => CopyStage::Failed(None, error),
        };
        let result = match &mut *stage {
            CopyStage::Current(copy) => copy.catch_up(),
            _ => return self.progress.became_failed(),
        };
        stage.settle(result, &self.progress);
        if let CopyStage::Current(copy) = &mut *stage {
            self.progress.became_current();
            if !self.settings.follow {
                // There may be more streams than a process may open files.
                copy.close_journal();
            }
        }
    }

    /// Follows all streams that are open, each with a thread, until they end or the import is stopped.
    fn follow(&self, streams: &Arc<Vec<ImportedStream>>, stop: &AtomicBool) {
        let open: Vec<usize> = (0..streams.len())
            .filter(|at| streams[*at].is_followed())
            .collect();
        self.progress.follow(open.len());
        let stopped = Arc::new(AtomicBool::new(false));
        for at in open {
            let follower = StreamFollower {
                streams: Arc::clone(streams),
                at,
                stopped: Arc::clone(&stopped),
                progress: Arc::clone(&self.progress),
                patience: self.settings.patience,
            };
            let thread = std::thread::Builder::new()
                .name("follow".into())
                .stack_size(STACK_BYTES);
            // It is not waited for: its long poll may take a minute, and it changes nothing once `stopped` is set.
            if let Err(why) = thread.spawn(move || follower.run()) {
                let error = CopyFailure::Protocol {
                    url: streams[at].task.source.clone(),
                    why: format!("no thread can be made to follow the stream: {why}"),
                };
                streams[at].stage().settle(Err(error), &self.progress);
                self.progress.follow_ended();
            }
        }
        while self.progress.following() > 0 && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(STOP_LATENCY);
        }
        stopped.store(true, Ordering::SeqCst);
    }

    /// Does something with each stream, several at a time. The results are in the order of the streams.
    fn each<T: Send>(
        &self,
        streams: &[ImportedStream],
        work: &(dyn Fn(&ImportedStream) -> T + Sync),
    ) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<T>>> = streams.iter().map(|_| Mutex::default()).collect();
        let run = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(stream) = streams.get(at) else { break };
                let result = work(stream);
                *locked(&results[at]) = Some(result);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.settings.jobs.min(streams.len()) {
                // This thread does what those do that the system refuses.
                let _ = std::thread::Builder::new().spawn_scoped(scope, run);
            }
            run();
        });
        let results = results.into_iter();
        let results = results.map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner));
        results.flatten().collect()
    }

    /// What was done for a stream; its contents are compared first, if that is wanted.
    fn report(&self, stream: &ImportedStream) -> StreamReport {
        let mut stage = stream.stage();
        let mut compared: Option<Compared> = None;
        if self.settings.verify
            && let CopyStage::Current(copy) = &*stage
        {
            match verify::compare(copy) {
                Ok(found) => compared = Some(found),
                Err(error) => stage.settle(Err(error), &self.progress),
            }
        }
        let (copy, outcome) = match &*stage {
            CopyStage::Current(copy) if copy.is_complete() => (Some(copy), CopyOutcome::Closed),
            CopyStage::Current(copy) => (Some(copy), CopyOutcome::Current),
            CopyStage::Failed(copy, error) => {
                let error = error.to_string();
                (copy.as_ref(), CopyOutcome::Failed { error })
            }
            CopyStage::Waiting => (
                None,
                CopyOutcome::Failed {
                    error: "the thread that was to copy it has ended".into(),
                },
            ),
        };
        let position = copy
            .map(|copy| copy.position().clone())
            .unwrap_or_else(crate::journal::PositionPair::beginning);
        let appended = copy.map(|copy| copy.appended()).unwrap_or_default();
        StreamReport {
            stream: stream.task.name.clone(),
            source: stream.task.source.clone(),
            outcome,
            records: position.records,
            bytes: position.bytes,
            records_copied: appended.records,
            bytes_copied: appended.bytes,
            source_offset: position.source,
            offset: position.offset,
            compared,
        }
    }

    /// Both ends of a copy.
    fn ends(&self, task: &StreamTask) -> (ProtocolStream, ProtocolStream) {
        let stream = |server: &Arc<HttpServer>, url: &str, query: Option<String>| ProtocolStream {
            server: Arc::clone(server),
            url: url.to_owned(),
            query,
            patience: self.settings.patience,
            progress: Arc::clone(&self.progress),
        };
        (
            stream(&self.source, &task.source, task.query.clone()),
            stream(&self.destination, &task.destination, None),
        )
    }
}

/// Makes the directory if it is missing, and locks it.
fn lock(directory: &Path) -> Result<File, String> {
    if !directory.is_dir() {
        std::fs::create_dir_all(directory).map_err(|why| why.to_string())?;
        let above = directory.parent().filter(|one| !one.as_os_str().is_empty());
        // A map in a directory without a durable name would be lost.
        let named = File::open(above.unwrap_or(Path::new("."))).and_then(|above| above.sync_all());
        named.map_err(|why| why.to_string())?;
    }
    let file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .open(directory.join(LOCK));
    let file = file.map_err(|why| why.to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err("another import runs with it".into()),
        Err(TryLockError::Error(why)) => Err(why.to_string()),
    }
}

/// The file that is locked. No journal has a name without an ending.
const LOCK: &str = "lock";

/// The most streams that are copied at a time.
pub const JOBS_MAX: usize = 64;

/// The most streams that are followed at a time: each has a thread and a connection to the source.
pub const FOLLOWED_MAX: usize = 1_000;

/// The stack of a thread that follows a stream.
const STACK_BYTES: usize = 512 << 10;

/// How long it may take until a stop is noticed.
const STOP_LATENCY: Duration = Duration::from_millis(50);
