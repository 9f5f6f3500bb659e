//! Drives the machine of the subscriptions: hands in what comes, and carries out what it wants done.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use encke_clock::{Now, SteadyTime};
use encke_mailbox::{Bounds, Lane, Receiver, Sender, mailbox};
use encke_stream::{Command, Outcome, StreamChange, StreamState};
use encke_subscriptions::{
    Deliverer, DeliveryResult, LookUpError, PublishedSubscriptions, RequestNo, SubscribedStreams,
    SubscriptionEffect, SubscriptionError, SubscriptionMachine, SubscriptionRequest,
    SubscriptionResponse, WebhookDelivery,
};

use super::barriers::Barriers;
use super::context::{BuildDeliverer, SubscriptionsContext};
use super::look_ups::LookUp;
use crate::dispatcher_mailbox::DispatcherSender;
use crate::error::JobError;
use crate::message::DispatcherMessage;
use crate::op_number::{OpKind, first_op};
use crate::request::DispatchClient;
use crate::response::DispatchResponse;

/// The machine of the subscriptions, with what it is connected to.
pub(crate) struct SubscriptionDriver {
    machine: SubscriptionMachine,
    published: Arc<PublishedSubscriptions>,
    /// Something has changed since the counts were published.
    is_dirty: bool,
    publish_at: SteadyTime,
    clients: HashMap<RequestNo, DispatchClient>,
    next_request: RequestNo,
    barriers: Barriers<Waiting>,
    look_ups: Sender<LookUp>,
    /// Look-ups for which there is no room yet: at most one for each request.
    unsent: VecDeque<LookUp>,
    deliverer: WebhookCaller,
}

/// What waits until everything that was acknowledged before has come.
#[derive(Debug)]
enum Waiting {
    CatchUp(u64),
    LookUp(LookUp),
}

/// Calls webhooks, once there is one to call.
struct WebhookCaller {
    build: BuildDeliverer,
    deliverer: Option<Deliverer>,
    sender: DispatcherSender,
    is_stopped: bool,
}

impl WebhookCaller {
    fn call(&mut self, delivery: Box<WebhookDelivery>) {
        if self.is_stopped {
            return;
        }
        let deliverer = self.deliverer.get_or_insert_with(|| {
            let sender = self.sender.clone();
            // In the control lane, which has room for all: the dispatcher may report by itself.
            (self.build)(Box::new(move |number, result| {
                sender.control(DispatcherMessage::Delivered(number, result));
            }))
        });
        deliverer.deliver(delivery);
    }

    fn stop(&mut self) {
        self.is_stopped = true;
        if let Some(deliverer) = self.deliverer.take()
            && !deliverer.stop(STOP_MAX)
        {
            tracing::debug!("some calls of webhooks are not over yet");
        }
    }
}

/// What the dispatcher does for the subscriptions.
#[derive(Debug, Default)]
pub(crate) struct DriverWork {
    /// Commands to submit, with their numbers.
    pub(crate) commands: Vec<(u64, Command)>,
    /// Responses to send.
    pub(crate) responses: Vec<(DispatchClient, DispatchResponse)>,
}

impl SubscriptionDriver {
    /// Returns also what the thread of the look-ups needs. The commands have the numbers of that term.
    pub(crate) fn new(
        context: SubscriptionsContext,
        sender: DispatcherSender,
        term: u64,
    ) -> (
        SubscriptionDriver,
        Receiver<LookUp>,
        Box<dyn SubscribedStreams + Send>,
    ) {
        let bounds = Bounds {
            items_max: LOOK_UPS_MAX,
            bytes_max: LOOK_UPS_MAX * size_of::<LookUp>(),
        };
        let (look_ups, looking_up) = mailbox("look-ups", bounds);
        let mut machine = context.machine;
        machine.number_from(first_op(term, OpKind::Subscriptions));
        let driver = SubscriptionDriver {
            machine,
            published: context.published,
            is_dirty: true,
            publish_at: SteadyTime::default(),
            clients: HashMap::new(),
            next_request: 0,
            barriers: Barriers::new(context.logs, first_op(term, OpKind::Barriers)),
            look_ups,
            unsent: VecDeque::new(),
            deliverer: WebhookCaller {
                build: context.deliverer,
                deliverer: None,
                sender,
                is_stopped: false,
            },
        };
        (driver, looking_up, context.streams)
    }

    pub(crate) fn request(
        &mut self,
        now: Now,
        client: DispatchClient,
        request: SubscriptionRequest,
    ) {
        let number = self.next_request;
        self.next_request += 1;
        self.clients.insert(number, client);
        self.machine.request(now, number, request);
    }

    pub(crate) fn changed(&mut self, now: Now, changes: &[StreamChange]) {
        for change in changes {
            self.machine.changed(now, change);
        }
    }

    pub(crate) fn found(
        &mut self,
        now: Now,
        look_up: u64,
        found: Result<Vec<StreamState>, LookUpError>,
    ) {
        self.machine.found(now, look_up, found);
    }

    pub(crate) fn delivered(&mut self, now: Now, number: u64, result: DeliveryResult) {
        self.machine.delivered(now, number, result);
    }

    /// Handles the outcome of a command of the machine.
    pub(crate) fn committed(&mut self, now: Now, op: u64, outcome: Outcome) {
        self.machine.committed(now, op, outcome);
    }

    /// Handles the outcome of a command that waits for all others.
    pub(crate) fn barrier_committed(&mut self, now: Now, op: u64, outcome: &Outcome) {
        self.barriers.committed(now.steady, op, outcome);
    }

    /// There was no room for a command.
    pub(crate) fn unsent(&mut self, now: Now, op: u64) {
        match OpKind::of(op) {
            OpKind::Barriers => self.barriers.unsent(now.steady, op),
            _ => self.machine.unsent(now, op),
        }
    }

    /// Requests that wait are refused, and no call is under way any more.
    pub(crate) fn stop(&mut self) {
        self.machine.stop();
        self.barriers.clear();
        self.unsent.clear();
        self.deliverer.stop();
    }

    /// Handles what time brings, behind all messages of a turn.
    pub(crate) fn flush(&mut self, now: Now) {
        self.is_dirty = true;
        for waiting in self.barriers.passed() {
            match waiting {
                Waiting::CatchUp(number) => self.machine.caught_up(now, number),
                Waiting::LookUp(look_up) => self.unsent.push_back(look_up),
            }
        }
        self.machine.tick(now);
        self.machine.flush(now);
    }

    /// Carries out the effects of the machine, except for what the dispatcher does.
    pub(crate) fn work(&mut self, now: Now) -> DriverWork {
        let mut work = DriverWork::default();
        for effect in self.machine.take_effects() {
            match effect {
                SubscriptionEffect::Commit { op, command } => work.commands.push((op, *command)),
                SubscriptionEffect::LookUp {
                    look_up,
                    streams,
                    pattern,
                    matches_max,
                } => self.barriers.wait(Waiting::LookUp(LookUp {
                    number: look_up,
                    streams,
                    pattern,
                    matches_max,
                })),
                SubscriptionEffect::CatchUp { catch_up } => {
                    self.barriers.wait(Waiting::CatchUp(catch_up));
                }
                SubscriptionEffect::Deliver(delivery) => self.deliverer.call(delivery),
                SubscriptionEffect::Respond { to, response } => {
                    if let Some(client) = self.clients.remove(&to) {
                        work.responses.push((client, dispatch_response(response)));
                    }
                }
            }
        }
        work.commands.extend(self.barriers.commands(now.steady));
        while let Some(look_up) = self.unsent.pop_front() {
            let bytes = size_of::<LookUp>();
            if let Err(refused) = self.look_ups.try_send(Lane::Data, look_up, bytes) {
                self.unsent.push_front(refused.item);
                break;
            }
        }
        work
    }

    /// Publishes the counts, not too often: they are counted anew.
    pub(crate) fn publish(&mut self, now: Now) {
        if self.is_dirty && self.publish_at <= now.steady {
            self.is_dirty = false;
            self.publish_at = now.steady.after(PUBLISH_EVERY);
            self.published.publish(&self.machine);
        }
    }

    /// When the next turn is due at the latest.
    pub(crate) fn next_due(&self, now: Now) -> Option<SteadyTime> {
        let look_ups = (!self.unsent.is_empty()).then(|| now.steady.after(UNSENT_WAIT));
        let publish = self.is_dirty.then_some(self.publish_at);
        let due = [
            self.machine.next_due(),
            self.barriers.next_due(),
            look_ups,
            publish,
        ];
        due.into_iter().flatten().min()
    }

    /// Whether no command is on its way to the log.
    pub(crate) fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }
}

/// The response as the dispatcher sends it. A request that a stop has refused may go to the next dispatcher of a fleet, as those of the
/// pools.
fn dispatch_response(response: SubscriptionResponse) -> DispatchResponse {
    match response {
        SubscriptionResponse::Refused(SubscriptionError::Stopping) => {
            DispatchResponse::Refused(JobError::Stopping)
        }
        response => DispatchResponse::Subscription(Box::new(response)),
    }
}

/// The maximum number of look-ups that wait at their thread.
const LOOK_UPS_MAX: usize = 64;

/// The pause before look-ups are offered to their thread again.
const UNSENT_WAIT: Duration = Duration::from_millis(5);

/// The least time between two publications of the counts.
const PUBLISH_EVERY: Duration = Duration::from_millis(200);

/// How long a stop waits for calls that are under way.
const STOP_MAX: Duration = Duration::from_secs(1);
