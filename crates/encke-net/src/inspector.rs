//! What a shard hands to the thread that answers operators, and the way back. A shard answers no question about the server itself: an
//! answer may walk over all connections or streams.
//!
//! The thread belongs to the server (`encke-server`), which takes the questions from the queue.

use std::sync::Arc;

use encke_mailbox::{Bounds, Gauge, Lane, Receiver, Sender, mailbox};
use encke_protocol::{Inquiry, Response};

use crate::feed::slot::Token;
use crate::shard_channel::{ShardEvent, ShardSender};

/// Sends questions to the thread that answers them. The queue ends when the last clone is gone.
#[derive(Clone)]
pub struct Inspector(Sender<InspectTask>);

/// A question, and where its answer goes.
pub struct InspectTask {
    /// The question.
    pub inquiry: Box<Inquiry>,
    /// Where its answer goes.
    pub reply: InspectReply,
}

/// The connection that waits for an answer. An answer waits while the mailbox of its shard is full; for a connection or a shard that is
/// gone it does nothing.
pub struct InspectReply {
    token: Token,
    sender: Arc<ShardSender>,
}

impl Inspector {
    /// The queue, and its end. It holds [`Inspector::QUESTIONS_MAX`] questions; further ones are refused as overload.
    pub fn new() -> (Inspector, Receiver<InspectTask>) {
        let bounds = Bounds {
            items_max: Inspector::QUESTIONS_MAX,
            bytes_max: Inspector::QUESTIONS_MAX * size_of::<InspectTask>(),
        };
        let (sender, receiver) = mailbox("inspector", bounds);
        (Inspector(sender), receiver)
    }

    /// Questions that may wait. The address for operators has as many connections.
    pub const QUESTIONS_MAX: usize = 64;

    /// The state of the queue.
    pub fn gauge(&self) -> Gauge {
        self.0.gauge()
    }

    /// Asks a question for the connection with this token. False: the queue is full.
    pub(crate) fn ask(
        &self,
        inquiry: Box<Inquiry>,
        token: Token,
        sender: &Arc<ShardSender>,
    ) -> bool {
        let sender = Arc::clone(sender);
        let task = InspectTask {
            inquiry,
            reply: InspectReply { token, sender },
        };
        let bytes = size_of::<InspectTask>();
        self.0.try_send(Lane::Data, task, bytes).is_ok()
    }
}

impl InspectReply {
    /// Sends the answer.
    pub fn respond(self, response: Response) {
        let token = self.token;
        let response = Box::new(response);
        self.sender.put(ShardEvent::Inspected { token, response });
    }
}

#[cfg(test)]
mod tests {
    use encke_protocol::OperatorQuestion;

    use super::*;
    use crate::settings::NetSettings;
    use crate::shard_channel::shard_channel;

    #[test]
    fn questions_beyond_the_bound_are_refused() {
        let (sender, _receiver) = shard_channel(&NetSettings::default()).unwrap();
        let sender = Arc::new(sender);
        let (inspector, _questions) = Inspector::new();
        let ask = || {
            let question = OperatorQuestion::Overview;
            let note = None;
            inspector.ask(Box::new(Inquiry { question, note }), 0, &sender)
        };
        for _ in 0..Inspector::QUESTIONS_MAX {
            assert!(ask());
        }
        assert!(!ask());
        assert_eq!(inspector.gauge().depth(), Inspector::QUESTIONS_MAX);
    }
}
