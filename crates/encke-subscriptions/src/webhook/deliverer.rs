//! The threads that call webhooks.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use encke_client::ClientRules;
use encke_clock::Now;
use encke_threads::ResolveNames;
use parking_lot::{Condvar, Mutex};

use super::addresses::AllowedAddresses;
use super::caller::WebhookCaller;
use super::delivery::{DeliveryResult, WebhookDelivery};

/// Calls webhooks, in threads that only do that.
pub struct Deliverer {
    shared: Arc<SharedQueue>,
    /// `None` once it is stopped.
    caller: Option<WebhookCaller>,
}

/// What calls are made with.
pub struct DelivererContext {
    /// The maximum number of threads, and of calls at a time.
    pub threads_max: usize,
    /// The addresses that may be called.
    pub allowed_addresses: AllowedAddresses,
    /// Looks up names.
    pub names: Arc<dyn ResolveNames>,
    /// The rules of requests.
    pub client: ClientRules,
    /// The time.
    pub clock: fn() -> Now,
    /// Takes the result of a call, under its number. It may wait, and it does not fail.
    pub report: ReportResult,
}

/// Takes the result of a call, under its number.
pub type ReportResult = Box<dyn Fn(u64, DeliveryResult) + Send + Sync>;

struct SharedQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
    threads_max: usize,
    clock: fn() -> Now,
    report: ReportResult,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Box<WebhookDelivery>>,
    /// Calls that have no result yet, those that wait included.
    calls: usize,
    threads: usize,
    /// Threads that wait for a call.
    idle: usize,
    is_stopped: bool,
}

impl Deliverer {
    /// A deliverer without threads: they start when calls come.
    pub fn new(context: DelivererContext) -> Deliverer {
        let DelivererContext {
            threads_max,
            allowed_addresses,
            names,
            client,
            clock,
            report,
        } = context;
        Deliverer {
            shared: Arc::new(SharedQueue {
                state: Mutex::default(),
                changed: Condvar::new(),
                threads_max,
                clock,
                report,
            }),
            caller: Some(WebhookCaller::new(allowed_addresses, names, &client)),
        }
    }

    /// Makes a call, and reports its result. It does not wait. With as many calls as threads under way, the call fails.
    pub fn deliver(&self, delivery: Box<WebhookDelivery>) {
        let number = delivery.number;
        let mut state = self.shared.state.lock();
        let Some(caller) = self.caller.as_ref().filter(|_| !state.is_stopped) else {
            return;
        };
        if state.calls >= self.shared.threads_max {
            drop(state);
            let reason = "too many calls at a time".to_owned();
            return (self.shared.report)(number, DeliveryResult::Failed(reason));
        }
        state.calls += 1;
        state.waiting.push_back(delivery);
        // A thread that is about to report a result takes the next call without a pause.
        if state.waiting.len() <= state.idle || state.threads == self.shared.threads_max {
            self.shared.changed.notify_all();
            return;
        }
        state.threads += 1;
        drop(state);
        let (shared, caller) = (Arc::clone(&self.shared), caller.clone());
        let spawned = std::thread::Builder::new()
            .name("webhook".into())
            .spawn(move || run(&shared, &caller));
        if let Err(error) = spawned {
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            // Another thread may have taken it.
            let mut waiting = state.waiting.iter();
            let at = waiting.position(|waiting| waiting.number == number);
            if at.is_some_and(|at| state.waiting.remove(at).is_some()) {
                state.calls -= 1;
                drop(state);
                let reason = format!("no thread for the call: {error}");
                (self.shared.report)(number, DeliveryResult::Failed(reason));
            }
        }
    }

    /// Calls that have no result yet.
    pub fn calls(&self) -> usize {
        self.shared.state.lock().calls
    }

    /// Interrupts all calls, and waits until the threads have ended, but no longer than that. Nothing is reported any more. True: all
    /// threads have ended.
    pub fn stop(mut self, wait_max: Duration) -> bool {
        let until = Instant::now() + wait_max;
        self.shut_down();
        let mut state = self.shared.state.lock();
        while state.threads > 0 {
            let waited = self.shared.changed.wait_until(&mut state, until);
            if waited.timed_out() {
                return state.threads == 0;
            }
        }
        true
    }

    fn shut_down(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_stopped = true;
        state.waiting.clear();
        drop(state);
        self.shared.changed.notify_all();
        if let Some(caller) = self.caller.take() {
            caller.shut_down();
        }
    }
}

/// The threads end with it, and are not waited for.
impl Drop for Deliverer {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl fmt::Debug for Deliverer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliverer").finish_non_exhaustive()
    }
}

/// A thread: makes calls until the deliverer stops.
fn run(shared: &SharedQueue, caller: &WebhookCaller) {
    // However it ends, it does not count any more.
    let _thread = RunningThread(shared);
    let mut state = shared.state.lock();
    while !state.is_stopped {
        let Some(delivery) = state.waiting.pop_front() else {
            state.idle += 1;
            shared.changed.wait(&mut state);
            state.idle -= 1;
            continue;
        };
        drop(state);
        let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            call(caller, &delivery, (shared.clock)())
        }));
        let result =
            called.unwrap_or_else(|_| DeliveryResult::Failed("the call has panicked".to_owned()));
        // Before the report: the next call may follow from it.
        state = shared.state.lock();
        state.calls -= 1;
        if !state.is_stopped {
            drop(state);
            (shared.report)(delivery.number, result);
            state = shared.state.lock();
        }
    }
}

struct RunningThread<'a>(&'a SharedQueue);

impl Drop for RunningThread<'_> {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.changed.notify_all();
    }
}

/// Makes a call.
fn call(caller: &WebhookCaller, delivery: &WebhookDelivery, now: Now) -> DeliveryResult {
    let notice = &delivery.notice;
    let signed = delivery
        .key
        .sign(now.wall, |bytes| notice.write_body(bytes));
    let fields = [("Webhook-Signature", signed.field())];
    match caller.post(&delivery.url, &fields, signed.body(), delivery.timeout) {
        Ok(Some(body)) => DeliveryResult::of_body(&body),
        // It is no word that Encke knows.
        Ok(None) => DeliveryResult::Accepted,
        Err(reason) => DeliveryResult::Failed(reason),
    }
}
