//! What a shard hands to the threads that may wait for files, and the way back. A shard neither reads a file nor compresses.
//!
//! The threads themselves belong to the server (`encke-server`), which takes the tasks from the queues.

use std::sync::Arc;

use encke_log::{ReadError, StreamNo};
use encke_mailbox::{Bounds, Gauge, Lane, Receiver, Sender, mailbox};
use encke_stream::{Fetch, ListFetch, LoadError, Lookup, OrderFetch, Piece, Stream, StreamPage};

use crate::compression::{CompressedPiece, Compressor};
use crate::feed::slot::Token;
use crate::shard_channel::{ShardEvent, ShardSender};

/// Sends tasks to the reader threads. The queues end when the last clone is gone.
#[derive(Clone)]
pub struct Readers {
    queues: Vec<Sender<ReadTask>>,
    kept: KeptPieces,
}

/// Gives a part of a stream that is in memory, without a wait.
pub type KeptPieces = Arc<dyn Fn(&Fetch) -> Option<Piece> + Send + Sync>;

/// What a reader thread does.
pub enum ReadTask {
    /// Reads a part of a stream; the reply is [`ReadReply::piece`].
    Read(Fetch, ReadReply),
    /// Reads a part of the global order, for a subscriber of a pattern; the reply is [`ReadReply::piece`].
    ReadOrder(OrderFetch, ReadReply),
    /// Loads what is known of a name; the reply is [`ReadReply::name`].
    LoadName(Box<str>, ReadReply),
    /// Reads a page of the list of streams; the reply is [`ReadReply::page`].
    List(ListFetch, ReadReply),
    /// Loads a stream, for a subscriber; the reply is [`ReadReply::stream`].
    LoadStream(StreamNo, ReadReply),
    /// Loads a stream whose lifetime is over, so that it ends. There is no reply.
    End(StreamNo),
    /// Compresses a piece of a response: [`CompressTask::run`].
    Compress(CompressTask),
}

/// The connection that waits for the result of a task. Replies wait while the mailbox of its shard is full; for a connection or a
/// shard that is gone they do nothing.
pub struct ReadReply {
    token: Token,
    sender: Arc<ShardSender>,
}

/// A compressor with input, for a connection.
pub struct CompressTask {
    pub(crate) compressor: Box<Compressor>,
    pub(crate) token: Token,
    pub(crate) sender: Arc<ShardSender>,
}

impl Readers {
    /// The queues of `count` threads, at least one, and their ends. Each holds 65,536 tasks; further ones are refused.
    pub fn new(count: usize, kept: KeptPieces) -> (Readers, Vec<Receiver<ReadTask>>) {
        let ends = (0..count.max(1)).map(|_| {
            let bounds = Bounds {
                items_max: TASKS_MAX,
                bytes_max: TASKS_MAX * size_of::<ReadTask>(),
            };
            mailbox("reader", bounds)
        });
        let (queues, receivers) = ends.unzip();
        (Readers { queues, kept }, receivers)
    }

    /// Loads a stream whose lifetime is over, unless the queue is full.
    pub fn end(&self, no: StreamNo) {
        // The sequencer tries again.
        let _ = self.send(no, ReadTask::End(no));
    }

    /// The state of each queue.
    pub fn gauges(&self) -> impl Iterator<Item = Gauge> + '_ {
        self.queues.iter().map(Sender::gauge)
    }

    /// A part of a stream that needs no reader thread.
    pub(crate) fn kept(&self, fetch: &Fetch) -> Option<Piece> {
        (self.kept)(fetch)
    }

    /// Reads a piece for the connection with this token. False: the queue is full.
    pub(crate) fn read(&self, fetch: Fetch, token: Token, sender: &Arc<ShardSender>) -> bool {
        let reply = ReadReply::new(token, sender);
        self.send(token, ReadTask::Read(fetch, reply)).is_none()
    }

    /// Reads a piece of the global order for the connection with this token. False: the queue is full.
    pub(crate) fn read_order(
        &self,
        fetch: OrderFetch,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let reply = ReadReply::new(token, sender);
        self.send(token, ReadTask::ReadOrder(fetch, reply))
            .is_none()
    }

    /// Loads what is known of a name. False: the queue is full.
    pub(crate) fn load_name(
        &self,
        name: Box<str>,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let reply = ReadReply::new(token, sender);
        self.send(token, ReadTask::LoadName(name, reply)).is_none()
    }

    /// Reads a page of the list of streams. False: the queue is full.
    pub(crate) fn list(&self, fetch: ListFetch, token: Token, sender: &Arc<ShardSender>) -> bool {
        let reply = ReadReply::new(token, sender);
        self.send(token, ReadTask::List(fetch, reply)).is_none()
    }

    /// Loads a stream. False: the queue is full.
    pub(crate) fn load_stream(
        &self,
        no: StreamNo,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let reply = ReadReply::new(token, sender);
        self.send(token, ReadTask::LoadStream(no, reply)).is_none()
    }

    /// Has a piece compressed and sent to the shard. `Err`: the queue is full.
    pub(crate) fn compress(&self, task: CompressTask) -> Result<(), Box<Compressor>> {
        match self.send(task.token, ReadTask::Compress(task)) {
            Some(ReadTask::Compress(task)) => Err(task.compressor),
            _ => Ok(()),
        }
    }

    /// Tasks with the same key go to the same thread, in order. Returns the task if its queue is full.
    fn send(&self, key: u64, task: ReadTask) -> Option<ReadTask> {
        let queue = &self.queues[key as usize % self.queues.len()];
        let sent = queue.try_send(Lane::Data, task, size_of::<ReadTask>());
        sent.err().map(|refused| refused.item)
    }
}

impl ReadReply {
    fn new(token: Token, sender: &Arc<ShardSender>) -> ReadReply {
        let sender = Arc::clone(sender);
        ReadReply { token, sender }
    }

    /// Replies with a part of a stream, or of the global order. It also waits while the shard has 512 KiB of pieces to send.
    pub fn piece(self, piece: Result<Piece, ReadError>) {
        self.sender.put_piece(self.token, piece);
    }

    /// Replies with what is known of a name.
    pub fn name(self, known: Result<Lookup, LoadError>) {
        let token = self.token;
        self.sender.put(ShardEvent::NameLoaded { token, known });
    }

    /// Replies with a page of the list of streams.
    pub fn page(self, page: Result<StreamPage, LoadError>) {
        let token = self.token;
        self.sender.put(ShardEvent::Listed { token, page });
    }

    /// Replies with a stream; `None` if it has ended.
    pub fn stream(self, stream: Result<Option<Arc<Stream>>, LoadError>) {
        let token = self.token;
        self.sender.put(ShardEvent::StreamLoaded { token, stream });
    }
}

impl CompressTask {
    /// Compresses at most 64 KiB of the input, and sends the output to the connection.
    pub fn run(self) {
        let CompressTask {
            mut compressor,
            token,
            sender,
        } = self;
        let out = compressor.step();
        let piece = CompressedPiece { compressor, out };
        sender.put(ShardEvent::Compressed { token, piece });
    }
}

/// Tasks that may wait for one thread; further ones are refused as overload.
const TASKS_MAX: usize = 65_536;
