//! Everything together: shards, readers and the sequencer over one log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use encke_face::Faces;
use encke_jobs::DispatcherMessage;
use encke_log::CommitError;
use encke_mailbox::{Bounds, Options, mailbox};
use encke_stream::{AckLevel, Desk, Intake, Logs, Outlet, Sequencer, Views};

use crate::addresses::Addresses;
use crate::archive::Archive;
use crate::buffers::Buffers;
use crate::inbox::{Door, Note, inbox};
use crate::jams::Jams;
use crate::listen;
use crate::metrics::Metrics;
use crate::pools::Pools;
use crate::readers::{Means, Readers};
use crate::settings::Settings;
use crate::shard::{Parts, Shard};

/// A server that runs until [`Server::stop`].
pub struct Server {
    address: SocketAddr,
    shards: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    dispatcher: encke_jobs::DispatcherSender,
    pools: encke_jobs::DispatcherThreads,
    /// One for each log.
    sequencers: Vec<JoinHandle<Result<(), CommitError>>>,
    doors: Vec<Arc<Door>>,
    /// One for each log, or none.
    desks: Arc<[Arc<Desk>]>,
    metrics: Metrics,
}

/// What a server serves: restored streams and their logs.
pub struct Streams {
    /// The streams, and what decides about them.
    pub logs: Logs,
    /// When an append is acknowledged to a stream that was made without a word about it.
    pub level: AckLevel,
}

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address can't be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system said.
        source: rustix::io::Errno,
    },
    /// The system refused something a shard needs.
    #[error("cannot set up a shard: {0}")]
    Shard(#[from] rustix::io::Errno),
    /// The pools can't be brought back from what they wrote down.
    #[error(transparent)]
    Pools(#[from] encke_jobs::ReplayError),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl Server {
    /// Starts all threads. When it returns, connections are accepted.
    pub fn start(
        settings: Settings,
        faces: &Faces,
        streams: Streams,
        metrics: &Metrics,
    ) -> Result<Server, StartError> {
        let settings = Arc::new(settings);
        let Streams { logs, level } = streams;
        let listeners = listeners(&settings)?;
        let address = match listeners.first() {
            Some(first) => listen::address(first)?,
            None => settings.listen,
        };
        let options = Options::new(Bounds {
            items_max: settings.mailbox_items_max,
            bytes_max: settings.mailbox_bytes_max,
        });
        let (doors, inboxes) = ends(&settings, listeners.len())?;
        let archive = Archive::of(&logs);
        let background: Vec<_> = logs.logs.iter().map(|(_, log)| log.background()).collect();
        let (readers, jobs) = Readers::new(settings.readers);
        let pools = Pools::restore(&settings, archive.clone())?;
        let dispatcher = pools.dispatcher.clone();
        let Logs { logs, views } = logs;
        let mut ways = Vec::with_capacity(logs.len());
        let mut desks = Vec::new();
        let mut sequencers = Vec::with_capacity(logs.len());
        for (number, (machine, log)) in logs.into_iter().enumerate() {
            let name = numbered("sequencer", number, views.logs());
            let (sender, receiver) = mailbox("sequencer", options);
            let (watched, expired) = (metrics.clone(), readers.clone());
            let counters = metrics.log.counters(number);
            let sequencer = Sequencer::new(
                machine,
                log,
                receiver,
                outlets(&doors, &dispatcher),
                level,
                Box::new(move |committed| {
                    watched.committed(committed);
                    counters.committed(committed);
                }),
            )
            .keeping(settings.keep, Box::new(move |no| expired.end(no)))
            .syncing_every(settings.sync_every);
            let thread = std::thread::Builder::new().name(name);
            let (desk, sequencer) = match level {
                AckLevel::Accepted => {
                    let desk = Arc::new(Desk::new(sequencer));
                    let shared = Arc::clone(&desk);
                    (Some(desk), thread.spawn(move || shared.run(now_ms))?)
                }
                AckLevel::Written | AckLevel::Synced => {
                    (None, thread.spawn(move || sequencer.run(now_ms))?)
                }
            };
            desks.extend(desk.clone());
            sequencers.push(sequencer);
            ways.push((sender, desk));
        }
        let desks: Arc<[Arc<Desk>]> = desks.into();
        let intake = Intake::new(Arc::clone(&views), ways);
        let watched_logs = archive.readers().to_vec();
        let reader_threads = jobs.start(&Means {
            archive: archive.with_desks(Arc::clone(&desks)),
            took: metrics.look_up_seconds.clone(),
        })?;
        let (board, pools) = pools.start(intake.clone(), Arc::clone(&desks), &doors)?;
        let connections = Arc::new(AtomicUsize::new(0));
        let addresses = Arc::new(Addresses::new(&settings));
        let buffers = Arc::new(Buffers::new(settings.buffers_bytes_max));
        let jams = Arc::new(Jams::default());
        let mut shards = Vec::new();
        for (number, (listener, inbox)) in listeners.into_iter().zip(inboxes).enumerate() {
            let shard = Shard::new(Parts {
                number: number as u16,
                settings: Arc::clone(&settings),
                faces: faces.clone(),
                listener,
                inbox,
                door: Arc::clone(&doors[number]),
                intake: intake.clone(),
                foreman: dispatcher.clone(),
                readers: readers.clone(),
                metrics: metrics.clone(),
                connections: Arc::clone(&connections),
                addresses: Arc::clone(&addresses),
                buffers: Arc::clone(&buffers),
                jams: Arc::clone(&jams),
                views: Arc::clone(&views),
            })?;
            shards.push(
                std::thread::Builder::new()
                    .name(format!("shard-{number}"))
                    .spawn(move || shard.run())?,
            );
        }
        watch(metrics, &views, intake, &doors);
        let gauged = dispatcher.clone();
        let background_count = background.len();
        let loads = pools.loads();
        metrics.on_render(move |metrics| {
            for (number, gauge) in readers.gauges().enumerate() {
                metrics.mailbox(&format!("reader-{number}"), &gauge);
            }
            metrics.mailbox("dispatcher", &gauged.gauge());
            metrics.mailbox("loader", &loads());
            for (number, background) in background.iter().enumerate() {
                let name = numbered("seal", number, background_count);
                metrics.mailbox(&name, &background());
            }
            metrics.pools.show(&board);
            metrics.addresses.set(addresses.known() as i64);
            metrics.buffered_bytes.set(buffers.bytes() as i64);
            metrics.streams_jammed.set(jams.count() as i64);
            for (number, log) in watched_logs.iter().enumerate() {
                metrics.log.show(number, &log.health(), log.class_floor(0));
            }
        });
        Ok(Server {
            address,
            shards,
            readers: reader_threads,
            dispatcher,
            pools,
            sequencers,
            doors,
            desks,
            metrics: metrics.clone(),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting, finishes what is under way, closes the log.
    ///
    /// # Errors
    /// The log could not be made durable, or a thread panicked; what was acknowledged at level
    /// `synced` is safe all the same.
    pub fn stop(self) -> Result<(), StopError> {
        // Workers, and whoever waits for a result, are told before their shards stop.
        self.dispatcher.control(DispatcherMessage::Stop);
        for door in &self.doors {
            door.put(Note::Stop);
        }
        for shard in self.shards {
            shard.join().map_err(|_| StopError::Panicked("shard"))?;
        }
        drop(self.doors);
        self.metrics.forget();
        self.dispatcher.control(DispatcherMessage::Quit);
        if !self.pools.join() {
            return Err(StopError::Panicked("dispatcher"));
        }
        // That were the last senders of the sequencer's mailbox and of the readers'.
        for desk in self.desks.iter() {
            desk.call();
        }
        // All logs are closed, whatever becomes of one.
        let ends: Vec<_> = self.sequencers.into_iter().map(JoinHandle::join).collect();
        for end in ends {
            end.map_err(|_| StopError::Panicked("sequencer"))??;
        }
        for reader in self.readers {
            reader.join().map_err(|_| StopError::Panicked("reader"))?;
        }
        Ok(())
    }
}

/// Why a stop was not clean.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The log could not be closed.
    #[error("the log could not be closed: {0}")]
    Log(#[from] CommitError),
    /// A thread panicked; its message stands in the log.
    #[error("a {0} thread panicked")]
    Panicked(&'static str),
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

/// One listener for each shard, all on the same port.
fn listeners(settings: &Settings) -> Result<Vec<std::os::fd::OwnedFd>, StartError> {
    let mut address = settings.listen;
    let failed = |source| StartError::Listen {
        address: settings.listen,
        source,
    };
    listen::is_free(address).map_err(failed)?;
    let mut listeners = Vec::with_capacity(settings.shards);
    for _ in 0..settings.shards.max(1) {
        let listener = listen::listener(settings, address).map_err(failed)?;
        // The system chose the port for the first; the others share it.
        address = listen::address(&listener).map_err(failed)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Both ends of each shard's inbox.
fn ends(
    settings: &Settings,
    shards: usize,
) -> rustix::io::Result<(Vec<Arc<Door>>, Vec<crate::inbox::Inbox>)> {
    let ends = (0..shards).map(|_| inbox(settings));
    let ends = ends.map(|ends| ends.map(|(door, inbox)| (Arc::new(door), inbox)));
    ends.collect::<rustix::io::Result<Vec<_>>>()
        .map(|ends| ends.into_iter().unzip())
}

/// The shards as the sequencer sees them, and behind them the dispatcher.
fn outlets(doors: &[Arc<Door>], dispatcher: &encke_jobs::DispatcherSender) -> Vec<Box<dyn Outlet>> {
    let doors = doors.iter().map(|door| Door::clone(door));
    let doors = doors.map(|door| Box::new(door) as Box<dyn Outlet>);
    let dispatcher: Box<dyn Outlet> = Box::new(dispatcher.clone());
    doors.chain([dispatcher]).collect()
}

/// The name of what there is one of for each log.
fn numbered(name: &str, log: usize, logs: usize) -> String {
    match logs {
        1 => name.to_owned(),
        _ => format!("{name}-{log}"),
    }
}

/// Lets the gauges be read when somebody asks for the metrics.
fn watch(metrics: &Metrics, views: &Arc<Views>, intake: Intake, doors: &[Arc<Door>]) {
    let views = Arc::clone(views);
    let doors = doors.to_vec();
    metrics.on_render(move |metrics| {
        metrics.streams(views.totals());
        metrics.log.show_acknowledged(&views);
        for (number, gauge) in intake.gauges().enumerate() {
            metrics.mailbox(&numbered("sequencer", number, views.logs()), &gauge);
        }
        for (number, door) in doors.iter().enumerate() {
            let shard = number.to_string();
            metrics.mailbox(&format!("shard-{number}"), &door.gauge());
            metrics.ring_lag(&shard, door.lag());
        }
    });
}
