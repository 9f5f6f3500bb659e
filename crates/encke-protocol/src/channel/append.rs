//! Waits for an append of a channel, and for an ephemeral message.

use encke_stream::Outcome;

use super::reply::MessageTag;
use crate::action::{OnBroadcast, OnCommit};
use crate::problem::unexpected;
use crate::response::Response;

/// Waits for the outcome of an append.
#[derive(Debug)]
pub(super) struct ChannelAppend {
    pub(super) tag: MessageTag,
}

impl OnCommit for ChannelAppend {
    fn not_submitted(self: Box<Self>, refused: Response) -> Response {
        self.tag.error(refused)
    }

    fn committed(self: Box<Self>, outcome: Outcome) -> Response {
        let (tail, closed, stop_asked, producer, duplicate) = match outcome {
            Outcome::Appended {
                tail,
                closed,
                stop_asked,
                producer,
                duplicate,
            } => (tail, closed, stop_asked, producer, duplicate),
            Outcome::Refused(refusal) => return self.tag.refusal(&refusal),
            other => return self.tag.error(unexpected(&other)),
        };
        self.tag.reply("appended", |message| {
            message.plain("offset", tail);
            if closed {
                message.literal("closed", true);
            } else if stop_asked {
                message.literal("stopRequested", true);
            }
            if let Some((epoch, seq)) = producer {
                message.literal("epoch", epoch).literal("seq", seq);
            }
            if duplicate {
                message.literal("duplicate", true);
            }
        })
    }
}

/// Waits until an ephemeral message is handed over.
#[derive(Debug)]
pub(super) struct ChannelBroadcast {
    pub(super) tag: MessageTag,
}

impl OnBroadcast for ChannelBroadcast {
    fn not_handed_over(self: Box<Self>, refused: Response) -> Response {
        self.tag.error(refused)
    }

    fn handed_over(self: Box<Self>) -> Response {
        self.tag.reply("sent", |_| ())
    }
}
