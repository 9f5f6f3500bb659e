//! The thread of a relay: carries out what the rules decide.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use encke_clock::Now;
use encke_mailbox::Receiver;
use encke_stream::{
    Command, DispatcherTerm, FleetCommand, Outcome, Refusal, Reply, Submission, Submitter,
};
use encke_subscriptions::PublishedSubscriptions;
use encke_threads::spawn_essential;
use parking_lot::Mutex;

use super::relay::{PacketTo, Relay, RelayEffect, RelayFigures};
use crate::dispatcher::{DispatcherContext, SendResponse, SubmitCommands};
use crate::dispatcher_mailbox::{DispatcherReceiver, DispatcherSender, dispatcher_mailbox};
use crate::machines::DispatcherMachines;
use crate::message::{DispatcherMessage, RelayMessage};
use crate::response::DispatchResponse;
use crate::stats::PublishedStats;

/// Sends a packet to other nodes. It does not wait; a packet that cannot be sent is lost.
pub type SendPacket = Box<dyn Fn(PacketTo, Vec<u8>) + Send>;

/// Restores the pools and the subscriptions from the logs, once the index of these subscriptions is in use.
pub type RestoreMachines = Arc<dyn Fn() -> Result<DispatcherMachines, String> + Send + Sync>;

/// What a dispatcher with these machines and this way for its responses is connected to, in the term with this number.
pub type BuildDispatcher =
    Box<dyn Fn(DispatcherMachines, SendResponse, u64) -> DispatcherContext + Send>;

/// A relay's connections to the rest of the server.
pub struct RelayContext {
    /// The name of the node.
    pub node: Box<str>,
    /// Higher than at the last start of the node.
    pub run: u64,
    /// The number of logs.
    pub logs: usize,
    /// How long a request waits for a dispatcher.
    pub hold: Duration,
    /// The dispatcher that the node knows from the order.
    pub known: Box<dyn Fn() -> Option<DispatcherTerm> + Send>,
    /// How long no broker has answered; none if the node does not follow the order.
    pub silence: Box<dyn Fn() -> Option<Duration> + Send>,
    /// See [`SendPacket`].
    pub send: SendPacket,
    /// See [`RestoreMachines`].
    pub restore: RestoreMachines,
    /// See [`BuildDispatcher`].
    pub dispatcher: BuildDispatcher,
    /// Submits commands to the logs.
    pub submit: SubmitCommands,
    /// The relay's number among the sequencers' outlets.
    pub number: u16,
    /// Sends responses to the shards.
    pub respond: SendResponse,
    /// The published state of the pools.
    pub published: Arc<PublishedStats>,
    /// The published state of the subscriptions.
    pub subscriptions: Arc<PublishedSubscriptions>,
    /// The figures of the relay.
    pub figures: Arc<RelayFigures>,
    /// The bounds of the dispatcher's mailbox: messages, and their bytes.
    pub mailbox: (usize, usize),
    /// The time.
    pub clock: fn() -> Now,
}

impl DispatcherReceiver {
    /// Starts a relay in the place of a dispatcher. The thread ends after [`DispatcherMessage::Quit`].
    ///
    /// # Errors
    /// The operating system refused a thread.
    pub fn start_relay(self, context: RelayContext) -> std::io::Result<JoinHandle<()>> {
        spawn_essential("relay", move || {
            let figures = Arc::clone(&context.figures);
            let relay = RelayThread {
                relay: Relay::new(
                    Instant::now(),
                    &context.node,
                    context.run,
                    context.logs,
                    context.hold,
                    figures,
                ),
                context,
                sender: self.sender,
                dispatcher: None,
            };
            relay.run(self.messages);
        })
    }
}

struct RelayThread {
    relay: Relay,
    context: RelayContext,
    sender: DispatcherSender,
    dispatcher: Option<LocalDispatcher>,
}

/// The dispatcher of this node.
struct LocalDispatcher {
    sender: DispatcherSender,
    /// False: it is abandoned, and submits nothing more.
    may_submit: Arc<Mutex<bool>>,
    /// Messages for which it has no room yet, with their weights.
    waiting: Vec<(DispatcherMessage, usize)>,
    waiting_bytes: usize,
}

impl RelayThread {
    fn run(mut self, mut messages: Receiver<DispatcherMessage>) {
        let mut batch = Vec::new();
        let mut quits = false;
        let mut quits_at = None;
        while !quits || self.relay.is_in_office() {
            if quits_at.is_some_and(|at: Instant| at.elapsed() > QUIT_MAX) {
                tracing::warn!("the order has not answered; the dispatcher is given up");
                break;
            }
            let waiting = self.dispatcher.as_ref().map(|local| local.waiting.len());
            let wait_max = match waiting {
                None | Some(0) => LOOK_EVERY,
                Some(_) => RETRY_EVERY,
            };
            if messages.recv_batch_timeout(&mut batch, wait_max).is_err() {
                break;
            }
            let taken = batch.len();
            let now = Instant::now();
            for message in batch.drain(..) {
                match message {
                    DispatcherMessage::Relay(message) => self.relay_message(now, message),
                    DispatcherMessage::Stop => self.relay.stop(now),
                    DispatcherMessage::Quit => {
                        self.relay.stop(now);
                        quits = true;
                        quits_at.get_or_insert_with(Instant::now);
                    }
                    message => self.relay.message(now, message),
                }
                self.work();
            }
            let silence = (self.context.silence)();
            self.relay.tick(now, (self.context.known)(), silence);
            self.work();
            self.hand_over();
            messages.handled(taken);
        }
        self.relay.quit();
        self.work();
        if let Some(local) = self.dispatcher.take() {
            abandon(local);
        }
    }

    fn relay_message(&mut self, now: Instant, message: RelayMessage) {
        match message {
            RelayMessage::Packet(packet) => self.relay.packet(now, &packet),
            RelayMessage::Response(client, response) => {
                self.relay.response(now, client, response);
            }
            RelayMessage::Restored(number, restored) => self.restored(now, number, restored),
            RelayMessage::Ended(number) => self.ended(number),
        }
    }

    /// Starts the dispatcher with the restored machines.
    fn restored(
        &mut self,
        now: Instant,
        number: u64,
        restored: Result<Box<DispatcherMachines>, String>,
    ) {
        if !self.relay.expects(number) {
            return;
        }
        let started = restored.and_then(|machines| {
            self.start_dispatcher(number, *machines)
                .map_err(|error| error.to_string())
        });
        match started {
            Ok(()) => {
                self.relay.restored(now, number);
            }
            Err(error) => {
                tracing::error!(error, "the pools cannot be restored");
                self.relay.not_restored(now, number);
            }
        }
    }

    fn start_dispatcher(
        &mut self,
        number: u64,
        machines: DispatcherMachines,
    ) -> std::io::Result<()> {
        if let Some(local) = self.dispatcher.take() {
            abandon(local);
        }
        let (items_max, bytes_max) = self.context.mailbox;
        let (sender, receiver) = dispatcher_mailbox(items_max, bytes_max);
        let back = self.sender.clone();
        // The relay does not wait for the dispatcher, so the dispatcher may wait for the relay.
        let respond: SendResponse = Box::new(move |client, response| {
            let response = RelayMessage::Response(client, response);
            back.put(DispatcherMessage::Relay(response));
        });
        let mut context = (self.context.dispatcher)(machines, respond, number);
        let may_submit = Arc::new(Mutex::new(true));
        let (open, submit) = (Arc::clone(&may_submit), context.submit);
        context.submit = Box::new(move |commands, now| {
            // Locked, so that nothing is submitted behind the next claim of this node.
            let open = open.lock();
            if *open {
                submit(commands, now);
            }
        });
        let threads = receiver.start(context)?;
        let back = self.sender.clone();
        spawn_essential("pools", move || {
            threads.join();
            // Behind the last responses.
            back.put(DispatcherMessage::Relay(RelayMessage::Ended(number)));
        })?;
        self.dispatcher = Some(LocalDispatcher {
            sender,
            may_submit,
            waiting: Vec::new(),
            waiting_bytes: 0,
        });
        Ok(())
    }

    fn work(&mut self) {
        loop {
            let effects = self.relay.take_effects();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    RelayEffect::Respond(client, response) => {
                        (self.context.respond)(client, response);
                    }
                    RelayEffect::Submit(command, token) => self.submit(command, token),
                    RelayEffect::Send(to, packet) => (self.context.send)(to, packet),
                    RelayEffect::Restore(number) => self.restore(number),
                    RelayEffect::Dispatch(message) => {
                        self.dispatch(message);
                    }
                    RelayEffect::StopDispatcher => self.stop_dispatcher(),
                    RelayEffect::AbandonDispatcher => self.abandon(),
                }
            }
        }
    }

    fn dispatch(&mut self, message: DispatcherMessage) {
        let Some(local) = &mut self.dispatcher else {
            return;
        };
        match message {
            DispatcherMessage::Request(client, _) if local.waiting.len() >= WAITING_MAX => {
                let now = Instant::now();
                self.relay
                    .response(now, client, DispatchResponse::overloaded());
            }
            message => {
                let bytes = local.sender.weight_bytes(&message);
                local.waiting_bytes += bytes;
                local.waiting.push((message, bytes));
                if local.waiting_bytes > WAITING_BYTES_MAX {
                    self.relay.overrun(Instant::now());
                }
            }
        }
    }

    /// Hands the dispatcher as many messages as it has room for.
    fn hand_over(&mut self) {
        if let Some(local) = &mut self.dispatcher
            && !local.waiting.is_empty()
        {
            local.sender.put_many(&mut local.waiting);
            local.waiting_bytes = local.waiting.iter().map(|(_, bytes)| bytes).sum();
        }
    }

    fn submit(&mut self, command: FleetCommand, token: u64) {
        let from = Submitter {
            shard: self.context.number,
            token,
        };
        let command = Command::Fleet(command);
        let bytes = command.weight_bytes();
        let mut commands = vec![(Submission::new(command, from), bytes)];
        (self.context.submit)(&mut commands, (self.context.clock)());
        if !commands.is_empty() {
            let outcome = Outcome::Refused(Refusal::Stalled("there is no room".into()));
            let refused = vec![Reply { token, outcome }];
            self.relay.committed(Instant::now(), refused);
        }
    }

    /// Restores the machines in a thread of its own: long journals must not delay heartbeats.
    fn restore(&mut self, number: u64) {
        let restore = Arc::clone(&self.context.restore);
        let sender = self.sender.clone();
        self.context.published.clear();
        let thread = std::thread::Builder::new().name("pools".into());
        let spawned = thread.spawn(move || {
            let restored = catch_unwind(AssertUnwindSafe(|| restore()));
            let restored =
                restored.unwrap_or_else(|_| Err("the restoring thread has panicked".into()));
            let restored = restored.map(Box::new);
            let restored = RelayMessage::Restored(number, restored);
            sender.put(DispatcherMessage::Relay(restored));
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread for the pools");
            self.relay.not_restored(Instant::now(), number);
        }
    }

    /// Lets the dispatcher end. It needs the outcomes of its last commands, which come through this thread.
    fn stop_dispatcher(&mut self) {
        if let Some(local) = &self.dispatcher {
            local.sender.control(DispatcherMessage::Quit);
        }
    }

    fn ended(&mut self, number: u64) {
        self.relay.ended(Instant::now(), number);
        if !self.relay.is_in_office() {
            self.abandon();
        }
    }

    fn abandon(&mut self) {
        if let Some(local) = self.dispatcher.take() {
            abandon(local);
        }
        self.context.published.clear();
        self.context.subscriptions.clear();
    }
}

/// Ends a dispatcher whose commands have no effect any more. Its threads end by themselves.
fn abandon(local: LocalDispatcher) {
    *local.may_submit.lock() = false;
    local.sender.control(DispatcherMessage::Abandon);
}

/// How often the relay looks at the time and at what the order says.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often messages are offered again to a dispatcher that has no room.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// The most messages that wait for a dispatcher without room; further requests are refused.
const WAITING_MAX: usize = 10_000;

/// The most bytes of messages that wait for a dispatcher without room: beyond that the node gives its turn away.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// The longest wait for the last outcomes when the server stops: longer than a node tries a batch, and waits for its own log.
const QUIT_MAX: Duration = Duration::from_secs(20);
