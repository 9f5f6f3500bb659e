//! The mailbox of the dispatcher, and how commits reach it.

use std::sync::Arc;

use encke_mailbox::{Bounds, Gauge, Lane, Receiver, SendErrorKind, Sender, mailbox};
use encke_stream::{Batch, Handover, ObserveCommits, Outlet, Reply, StreamChange, StreamState};
use encke_subscriptions::PublishedSubscriptions;

use crate::message::{DispatcherMessage, RelayMessage};

/// The sending end of the dispatcher's mailbox.
#[derive(Clone)]
pub struct DispatcherSender {
    messages: Sender<DispatcherMessage>,
    bytes_max: usize,
}

/// The receiving end of the dispatcher's mailbox.
pub struct DispatcherReceiver {
    pub(crate) messages: Receiver<DispatcherMessage>,
    pub(crate) sender: DispatcherSender,
}

/// Creates the mailbox with these bounds on messages and their bytes.
pub fn dispatcher_mailbox(
    items_max: usize,
    bytes_max: usize,
) -> (DispatcherSender, DispatcherReceiver) {
    let bounds = Bounds {
        items_max,
        bytes_max,
    };
    let (sender, messages) = mailbox("dispatcher", bounds);
    let sender = DispatcherSender {
        messages: sender,
        bytes_max,
    };
    (sender.clone(), DispatcherReceiver { messages, sender })
}

impl DispatcherSender {
    /// Sends as many messages as there is room for, in order; the others stay in the list.
    pub fn put_many(&self, messages: &mut Vec<(DispatcherMessage, usize)>) {
        self.messages.try_send_many(Lane::Data, messages);
    }

    /// The weight of a message in the mailbox, in bytes.
    pub fn weight_bytes(&self, message: &DispatcherMessage) -> usize {
        let content = match message {
            DispatcherMessage::Request(_, request) => request.content_bytes(),
            DispatcherMessage::Loaded {
                payload: Ok(payload),
                ..
            } => payload.body.len(),
            DispatcherMessage::Relay(RelayMessage::Packet(packet)) => packet.len(),
            DispatcherMessage::Relay(RelayMessage::Response(_, response)) => {
                response.weight_bytes()
            }
            DispatcherMessage::Committed(replies) => replies.len() * size_of::<Reply>(),
            DispatcherMessage::Changed(changes) => changes.iter().map(change_bytes).sum(),
            DispatcherMessage::Found(_, Ok(found)) => found.iter().map(state_bytes).sum(),
            _ => 0,
        };
        (content + size_of::<DispatcherMessage>()).min(self.bytes_max)
    }

    /// Sends a message in the control lane. A dispatcher that is gone ignores it.
    pub fn control(&self, message: DispatcherMessage) {
        let _ = self
            .messages
            .send(Lane::Control, message, size_of::<DispatcherMessage>());
    }

    /// The state of the mailbox.
    pub fn gauge(&self) -> Gauge {
        self.messages.gauge()
    }

    /// Sends a message. Blocks while the mailbox is full.
    pub(crate) fn put(&self, message: DispatcherMessage) {
        let bytes = self.weight_bytes(&message);
        let _ = self.messages.send(Lane::Data, message, bytes);
    }
}

fn change_bytes(change: &StreamChange) -> usize {
    change.name().len() + size_of::<StreamChange>()
}

fn state_bytes(state: &StreamState) -> usize {
    state.name.len() + size_of::<StreamState>()
}

/// The dispatcher as a sequencer sees it: it gets the outcomes of its commands, and the changes of streams that concern subscriptions.
pub struct DispatcherOutlet {
    sender: DispatcherSender,
    subscriptions: Arc<PublishedSubscriptions>,
}

impl DispatcherOutlet {
    /// The outlet to a mailbox. `subscriptions` says which streams concern them.
    pub fn new(sender: DispatcherSender, subscriptions: Arc<PublishedSubscriptions>) -> Self {
        DispatcherOutlet {
            sender,
            subscriptions,
        }
    }
}

impl Outlet for DispatcherOutlet {
    fn deliver(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) {
        for message in messages(batch.as_deref(), replies) {
            self.sender.put(message);
        }
    }

    fn admit(&self) {}

    fn offer(&self, batch: Option<Arc<Batch>>, replies: Vec<Reply>) -> Result<(), Handover> {
        for message in messages(batch.as_deref(), replies) {
            let bytes = self.sender.weight_bytes(&message);
            let Err(refused) = self.sender.messages.try_send(Lane::Data, message, bytes) else {
                continue;
            };
            let replies = match (refused.kind, refused.item) {
                (SendErrorKind::Closed, _) => return Ok(()),
                (_, DispatcherMessage::Committed(replies)) => replies,
                // The changes are in the batch.
                _ => Vec::new(),
            };
            return Err(Handover { batch, replies });
        }
        Ok(())
    }

    fn observer(&self) -> Option<Arc<dyn ObserveCommits>> {
        Some(Arc::clone(&self.subscriptions) as Arc<dyn ObserveCommits>)
    }
}

/// What the dispatcher gets of a commit: the outcomes of its commands, and behind them the changes.
fn messages(
    batch: Option<&Batch>,
    replies: Vec<Reply>,
) -> impl Iterator<Item = DispatcherMessage> + use<> {
    let changes: Vec<StreamChange> = batch.map_or(&[][..], Batch::changes).to_vec();
    let replies = (!replies.is_empty()).then_some(DispatcherMessage::Committed(replies));
    let changes = (!changes.is_empty()).then_some(DispatcherMessage::Changed(changes));
    replies.into_iter().chain(changes)
}
