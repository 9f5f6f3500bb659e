//! Responses that a dispatcher makes from its memory alone, until the order has shown that the node still dispatches.
//!
//! A node that has lost its turn does not know so before it has followed the order to there. What it has written is refused there, but an
//! answer such as "unknown job" needs no record. So such an answer waits for a command that changes nothing: when that has come back,
//! the node knows each turn that began before it.

use crate::request::DispatchClient;
use crate::response::DispatchResponse;

type Answers = Vec<(DispatchClient, DispatchResponse)>;

/// Responses that wait for a check of the order.
#[derive(Debug, Default)]
pub(super) struct Unconfirmed {
    /// No check was sent for them.
    new: Answers,
    /// The check on its way is for them.
    checking: Answers,
    /// Their check has come back.
    checked: Answers,
    /// The token of the check on its way.
    check: Option<u64>,
}

impl Unconfirmed {
    pub(super) fn add(&mut self, client: DispatchClient, response: DispatchResponse) {
        self.new.push((client, response));
    }

    /// Whether a check is to be sent: there are responses, and none is on its way.
    pub(super) fn needs_check(&self) -> bool {
        self.check.is_none() && !self.new.is_empty()
    }

    /// A check with this token is sent, for all responses that were added before.
    pub(super) fn begin_check(&mut self, token: u64) {
        self.check = Some(token);
        self.checking.append(&mut self.new);
    }

    /// A check has come back, or was refused. Another one is sent then.
    pub(super) fn end_check(&mut self, token: u64, is_done: bool) {
        if self.check == Some(token) {
            self.check = None;
            let to = match is_done {
                true => &mut self.checked,
                false => &mut self.new,
            };
            to.append(&mut self.checking);
        }
    }

    /// Takes the responses whose check has come back.
    pub(super) fn take_checked(&mut self) -> Answers {
        std::mem::take(&mut self.checked)
    }

    /// Takes all responses.
    pub(super) fn take_all(&mut self) -> Answers {
        let mut all = self.take_checked();
        all.append(&mut self.checking);
        all.append(&mut self.new);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_for_the_responses_before_it() {
        let answer = |request| {
            let client = DispatchClient {
                node: 0,
                shard: 0,
                token: 1,
                request,
            };
            (client, DispatchResponse::NoJob)
        };
        let requests = |answers: Answers| -> Vec<u32> {
            answers.iter().map(|(client, _)| client.request).collect()
        };
        let mut unconfirmed = Unconfirmed::default();
        assert!(!unconfirmed.needs_check());
        let add = |unconfirmed: &mut Unconfirmed, request| {
            let (client, response) = answer(request);
            unconfirmed.add(client, response);
        };
        add(&mut unconfirmed, 1);
        assert!(unconfirmed.needs_check());
        unconfirmed.begin_check(7);
        add(&mut unconfirmed, 2);
        assert!(!unconfirmed.needs_check(), "one at a time");
        unconfirmed.end_check(6, true);
        assert!(unconfirmed.take_checked().is_empty(), "of an earlier turn");
        unconfirmed.end_check(7, true);
        assert_eq!(requests(unconfirmed.take_checked()), [1]);
        // What is refused is checked again.
        unconfirmed.begin_check(8);
        unconfirmed.end_check(8, false);
        assert!(unconfirmed.take_checked().is_empty() && unconfirmed.needs_check());
        unconfirmed.begin_check(9);
        add(&mut unconfirmed, 3);
        assert_eq!(requests(unconfirmed.take_all()), [2, 3]);
    }
}
