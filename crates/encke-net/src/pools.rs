//! Runs the pools in the server: the threads of the dispatcher.

use std::sync::Arc;

use encke_jobs::{
    DispatcherContext, DispatcherReceiver, DispatcherSender, DispatcherThreads, JobMachine,
    PublishedStats, ReplayError,
};
use encke_stream::{InlineCommit, Logs, Lookup, Sequencers, Stream};

use crate::archive::Archive;
use crate::clock::now_ms;
use crate::errors::StartError;
use crate::settings::NetSettings;
use crate::shard_channel::{ShardEvent, ShardSender};

/// The names of the pools that the logs hold.
///
/// # Errors
/// The stream that says which there are can't be read.
pub fn pools(logs: &Logs) -> Result<Vec<String>, ReplayError> {
    let archive = Archive::of(logs);
    encke_jobs::pools(&finder(&archive), &|fetch| {
        archive.read(fetch).map_err(|error| error.to_string())
    })
}

fn finder(archive: &Archive) -> impl Fn(&str) -> Result<Option<Arc<Stream>>, String> + '_ {
    move |name| match archive.loaders.load(name) {
        Ok(Lookup::Stream(stream)) => Ok(Some(stream)),
        Ok(Lookup::Free(_)) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The pools before they serve requests.
pub(crate) struct PoolService {
    pub(crate) dispatcher: DispatcherSender,
    receiver: DispatcherReceiver,
    machine: JobMachine,
    published: Arc<PublishedStats>,
    archive: Archive,
}

impl PoolService {
    /// Restores the pools from their streams.
    pub(crate) fn restore(
        settings: &NetSettings,
        archive: Archive,
    ) -> Result<PoolService, StartError> {
        let published = Arc::new(PublishedStats::default());
        let (dispatcher, receiver) = encke_jobs::dispatcher_mailbox(
            settings.pool_mailbox_items_max,
            settings.pool_mailbox_bytes_max,
        );
        let limits = settings.pools.clone();
        let read = |fetch: &_| archive.read(fetch).map_err(|error| error.to_string());
        let machine = {
            let find = finder(&archive);
            JobMachine::replay(limits, Arc::clone(&published), &find, &read, now_ms())?
        };
        Ok(PoolService {
            dispatcher,
            receiver,
            machine,
            published,
            archive,
        })
    }

    /// Starts the dispatcher, which sends its responses through these senders.
    pub(crate) fn start(
        self,
        sequencers: Sequencers,
        inline_commits: Arc<[Arc<InlineCommit>]>,
        senders: &[Arc<ShardSender>],
    ) -> std::io::Result<(Arc<PublishedStats>, DispatcherThreads)> {
        let archive = self.archive.with_inline_commits(inline_commits);
        let loaders = archive.loaders.clone();
        let number = senders.len() as u16;
        let senders = senders.to_vec();
        let threads = self.receiver.start(DispatcherContext {
            machine: self.machine,
            look_up: Box::new(move |name| loaders.load(name).map_err(|error| error.to_string())),
            submit: Box::new(move |commands, now_ms| sequencers.submit(commands, now_ms)),
            number,
            read: Box::new(move |fetch| archive.read(fetch).map_err(|error| error.to_string())),
            respond: Box::new(move |client, event| {
                if let Some(sender) = senders.get(usize::from(client.shard)) {
                    sender.put(ShardEvent::Dispatched { client, event });
                }
            }),
            clock: now_ms,
        })?;
        Ok((self.published, threads))
    }
}
