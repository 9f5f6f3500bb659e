//! The threads of the sequencers, one for each log.

use std::sync::Arc;
use std::thread::JoinHandle;

use encke_log::CommitError;
use encke_mailbox::{Bounds, mailbox};
use encke_net::{Readers, ShardSender, ThreadPanicked, now};
use encke_stream::{
    AckLevel, Committed, InlineCommit, Logs, Outlet, ReplicaSequencer, Sequencer, Sequencers,
};
use encke_threads::spawn_essential;

use crate::dispatcher::DispatcherService;
use crate::errors::{StartError, StopError};
use crate::fleet_links::FleetLinks;
use crate::metrics::ServerMetrics;
use crate::settings::ServerSettings;

/// The running threads.
pub(crate) struct SequencerThreads {
    threads: Vec<JoinHandle<Result<(), CommitError>>>,
    /// One for each log, or none.
    inline_commits: Arc<[Arc<InlineCommit>]>,
}

/// What the sequencers are connected to.
pub(crate) struct SequencerLinks<'a> {
    pub(crate) settings: &'a ServerSettings,
    /// The level of streams that were created without one.
    pub(crate) level: AckLevel,
    /// Commits go to all shards, and behind them to the dispatcher.
    pub(crate) shards: &'a [Arc<ShardSender>],
    pub(crate) dispatcher: &'a DispatcherService,
    /// Streams whose lifetime is over are loaded here.
    pub(crate) readers: &'a Readers,
    pub(crate) metrics: &'a ServerMetrics,
}

impl SequencerThreads {
    /// Starts a thread for each log. With `fleet` the logs follow the orders of the fleet.
    ///
    /// # Errors
    /// The node can't follow its fleet, or the system refuses a thread.
    pub(crate) fn start(
        logs: Logs,
        links: &SequencerLinks<'_>,
        mut fleet: Option<&mut FleetLinks>,
    ) -> Result<(Sequencers, SequencerThreads), StartError> {
        let Logs { logs, views } = logs;
        let settings = links.settings;
        let bounds = Bounds {
            items_max: settings.mailbox_items_max,
            bytes_max: settings.mailbox_bytes_max,
        };
        let mut ways = Vec::with_capacity(logs.len());
        let mut inline_commits = Vec::new();
        let mut threads = Vec::with_capacity(logs.len());
        for (number, (machine, log)) in logs.into_iter().enumerate() {
            let name = numbered("sequencer", number, views.logs());
            let (sender, receiver) = mailbox("sequencer", bounds);
            let (outlets, watch) = (links.outlets(), links.watch(number));
            let expired = links.readers.clone();
            let end = Box::new(move |no| expired.end(no));
            if let Some(fleet) = &mut fleet {
                let following =
                    (fleet.follow)(number, &machine, receiver).map_err(StartError::Fleet)?;
                let sequencer = ReplicaSequencer::new(machine, log, following, outlets, watch)
                    .evicting(settings.eviction, end);
                threads.push(spawn_essential(name, move || sequencer.run(now))?);
                ways.push((sender, None));
                continue;
            }
            let sequencer = Sequencer::new(machine, log, receiver, outlets, links.level, watch)
                .evicting(settings.eviction, end)
                .syncing_every(settings.sync_every);
            let (inline_commit, sequencer) = match links.level {
                AckLevel::Accepted => {
                    let inline_commit = Arc::new(InlineCommit::new(sequencer));
                    let shared = Arc::clone(&inline_commit);
                    let thread = spawn_essential(name, move || shared.run(now))?;
                    (Some(inline_commit), thread)
                }
                AckLevel::Written | AckLevel::Synced => {
                    (None, spawn_essential(name, move || sequencer.run(now))?)
                }
            };
            inline_commits.extend(inline_commit.clone());
            threads.push(sequencer);
            ways.push((sender, inline_commit));
        }
        let threads = SequencerThreads {
            threads,
            inline_commits: inline_commits.into(),
        };
        Ok((Sequencers::new(views, ways), threads))
    }

    /// What commits at level `accepted`: one for each log, or none.
    pub(crate) fn inline_commits(&self) -> Arc<[Arc<InlineCommit>]> {
        Arc::clone(&self.inline_commits)
    }

    /// Waits for the end of all threads, which have no senders any more. All logs are closed, whatever becomes of one.
    pub(crate) fn join(self) -> Result<(), StopError> {
        for inline_commit in self.inline_commits.iter() {
            inline_commit.wake();
        }
        let ends: Vec<_> = self.threads.into_iter().map(JoinHandle::join).collect();
        for end in ends {
            end.map_err(|_| ThreadPanicked("sequencer"))??;
        }
        Ok(())
    }
}

impl SequencerLinks<'_> {
    /// The shards as a sequencer sees them, and behind them the dispatcher.
    fn outlets(&self) -> Vec<Box<dyn Outlet>> {
        let shards = self.shards.iter().map(|sender| ShardSender::clone(sender));
        let shards = shards.map(|sender| Box::new(sender) as Box<dyn Outlet>);
        let dispatcher: Box<dyn Outlet> = Box::new(self.dispatcher.outlet());
        shards.chain([dispatcher]).collect()
    }

    /// Counts the commits of a log.
    fn watch(&self, log: usize) -> Box<dyn Fn(&Committed) + Send + Sync> {
        let streams = self.metrics.streams.clone();
        let counters = self.metrics.log.counters(log);
        Box::new(move |committed| {
            streams.committed(committed);
            counters.committed(committed);
        })
    }
}

/// The name of what there is one of for each log.
pub(crate) fn numbered(name: &str, log: usize, logs: usize) -> String {
    match logs {
        1 => name.to_owned(),
        _ => format!("{name}-{log}"),
    }
}
