//! The wire's side of channels: what messages lead to, and what feeds deliver.

use std::collections::BTreeMap;

use encke_protocol::{
    Action, Channel, ChannelMessage, ChannelOpening, Feed, FeedEnd, Response, Subscription,
};

use super::{Reply, Server, fields_of};

/// A channel and its feeds, as a wire holds them.
pub struct TestChannel {
    pub channel: Box<dyn Channel>,
    /// The feeds, by their keys.
    pub feeds: BTreeMap<u32, Subscription>,
    /// The caller from the last message that has set it, by name.
    pub caller: Option<String>,
    /// What the messages that the URL stands for have led to.
    pub first: Vec<String>,
}

impl Server {
    /// A handshake of WebSocket.
    pub fn upgrade(&mut self, target: &str, headers: &[(&str, &str)]) -> Reply {
        self.upgrades = true;
        let reply = self.reply(&format!("GET {target}"), headers, b"");
        self.upgrades = false;
        reply
    }

    /// A handshake that must open a channel.
    pub fn open(&mut self, target: &str, headers: &[(&str, &str)]) -> TestChannel {
        match self.upgrade(target, headers) {
            Reply::Opened(said, channel) => {
                assert_eq!(said.status, 101);
                channel
            }
            Reply::Said(said) => {
                panic!("{target} opens no channel: {} {}", said.status, said.text())
            }
            _ => panic!("{target} opens no channel"),
        }
    }

    pub(super) fn opened(&mut self, opening: ChannelOpening) -> Reply {
        let ChannelOpening {
            response,
            channel,
            first,
        } = opening;
        let mut opened = TestChannel {
            channel,
            feeds: BTreeMap::new(),
            caller: None,
            first: Vec::new(),
        };
        for text in first {
            let text = String::from_utf8(text).unwrap();
            let said = self.say(&mut opened, &text);
            opened.first.extend(said);
        }
        Reply::Opened(fields_of(response), opened)
    }

    /// What a channel responds to a message.
    pub fn say(&mut self, to: &mut TestChannel, text: &str) -> Vec<String> {
        let mut barriers = 0;
        let done = loop {
            let message = ChannelMessage {
                text,
                now: self.now(),
                barriers,
                certificate: self.caller.certificate,
                address: None,
            };
            let done = to.channel.message(message);
            match done.action {
                Action::AwaitOrder(..) => barriers += 1,
                _ => break done,
            }
        };
        self.waited += barriers;
        let mut said = Vec::new();
        let mut action = done.action;
        while let Action::Read(fetch, then) = action {
            assert_ne!(done.key, 0);
            action = self.resume(&self.read(&fetch), then);
            if !matches!(action, Action::Read(..) | Action::Subscribe(_)) {
                assert!(to.channel.ended(done.key, FeedEnd::Told).is_empty());
            }
        }
        match action {
            Action::Respond(response) | Action::Park(response, _) => {
                said.push(message_of(&response));
            }
            Action::Commit(command, then) => {
                let outcome = self.apply(command);
                self.commit();
                said.push(message_of(&then.committed(outcome)));
            }
            Action::Broadcast(broadcast) => {
                self.broadcasts.push(broadcast.message);
                said.push(message_of(&broadcast.then.handed_over()));
            }
            Action::Subscribe(subscription) => {
                said.push(message_of(&subscription.response));
                assert_ne!(done.key, 0);
                assert!(to.feeds.insert(done.key, subscription).is_none());
            }
            Action::Unsubscribe(key, response) => {
                assert!(to.feeds.remove(&key).is_some());
                said.push(message_of(&response));
            }
            other => panic!("a channel does nothing like this: {other:?}"),
        }
        if let Some(caller) = done.caller {
            to.caller = caller.map(|caller| caller.name().to_owned());
        }
        for (key, response) in done.ended {
            assert!(to.feeds.remove(&key).is_some());
            said.push(message_of(&response));
        }
        said
    }

    /// What the feeds of a channel to single streams deliver up to the tail; those that are over end.
    pub fn deliver(&self, to: &mut TestChannel) -> Vec<String> {
        let mut delivered = Vec::new();
        for (key, mut subscription) in std::mem::take(&mut to.feeds) {
            let (bytes, marks) = self.follow(&subscription);
            let mut begin = 0;
            for mark in &marks {
                delivered.push(String::from_utf8(bytes[begin..mark.end].to_vec()).unwrap());
                begin = mark.end;
            }
            assert_eq!(begin, bytes.len());
            if let (Feed::Single { from, .. }, Some(last)) = (&mut subscription.feed, marks.last())
            {
                *from = last.at;
            }
            let last = delivered.last();
            match last.is_some_and(|last| last.contains("\"closed\"")) {
                true => assert!(to.channel.ended(key, FeedEnd::Told).is_empty()),
                false => drop(to.feeds.insert(key, subscription)),
            }
        }
        delivered
    }
}

/// A response to a message: it has a body of JSON, and no fields that nothing would send.
fn message_of(response: &Response) -> String {
    assert_eq!(response.fields, b"");
    String::from_utf8(response.body.as_ref().to_vec()).unwrap()
}
