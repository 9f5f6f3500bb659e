//! What becomes of a connection's task when the time of its caller is over. Whatever is awaited ends with its caller.

use super::exchange::task::Task;
use crate::clients::callers::CallerEnd;

/// How a task ends with its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A subscription: closed between two events, with the reason and where to continue.
    Dismiss,
    /// A long poll: answered as if its time were over. The client asks again with other credentials.
    AnswerPoll,
    /// A worker's stream of jobs: closed with the reason. The dispatcher gives its jobs to others.
    EndWork,
    /// A request that the dispatcher has: the dispatcher answers it now if it waits, in the way of the protocol.
    EndWait,
    /// A response that has begun: it may be completed within the time that a body may take.
    Finish,
    /// A response that has begun: cut off, so that nothing more of it is sent.
    Cut,
    /// What follows from a read is not known yet: a subscription or a long poll ends as soon as it has begun.
    Later,
    /// It ends soon, or the caller is determined again before anything is done.
    Nothing,
}

impl Ending {
    /// The ending of a task. A task that is added must say how it ends.
    pub(crate) fn of(task: &Task, end: CallerEnd) -> Ending {
        match (task, end) {
            (Task::Subscribed, _) => Ending::Dismiss,
            (Task::AwaitingRecord(..), _) => Ending::AnswerPoll,
            (Task::Working { .. }, _) => Ending::EndWork,
            (Task::AwaitingDispatch { .. }, _) => Ending::EndWait,
            // What it sends was there when it was asked for. A client that gets a part only could never finish with short tokens.
            (Task::Streaming { .. }, CallerEnd::Expired) => Ending::Finish,
            (Task::Streaming { .. }, CallerEnd::Revoked) => Ending::Cut,
            // The router is asked again, with the credentials.
            (Task::AwaitingLoad(_) | Task::AwaitingUnpark(_) | Task::AwaitingOrder(_), _) => {
                Ending::Nothing
            }
            (Task::AwaitingRead(_) | Task::AwaitingList(_), _) => Ending::Later,
            // It was asked with the right to know.
            (Task::AwaitingInspection, _) => Ending::Nothing,
            // A command cannot be taken back, and a page is compressed in no time.
            (
                Task::AwaitingCommit(_)
                | Task::AwaitingChange(_)
                | Task::AwaitingBroadcast(_)
                | Task::AwaitingCompression(_),
                _,
            ) => Ending::Nothing,
            // The next request has a caller of its own.
            (Task::Receiving | Task::Responded | Task::Opened(_), _) => Ending::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::task::{PartCoding, StreamingStep};
    use super::*;

    #[test]
    fn a_long_body_may_be_completed_unless_its_caller_was_revoked() {
        let body = Task::Streaming {
            step: StreamingStep::Over,
            coding: PartCoding::Identity,
        };
        assert_eq!(Ending::of(&body, CallerEnd::Expired), Ending::Finish);
        assert_eq!(Ending::of(&body, CallerEnd::Revoked), Ending::Cut);
        for end in [CallerEnd::Expired, CallerEnd::Revoked] {
            assert_eq!(Ending::of(&Task::default(), end), Ending::Nothing);
            assert_eq!(Ending::of(&Task::Responded, end), Ending::Nothing);
        }
    }
}
