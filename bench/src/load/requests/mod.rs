//! The request engine: many keep-alive connections in one epoll loop, each with a bounded number
//! of requests in flight, in total at a rate or as fast as responses arrive.
//!
//! A [`Traffic`] makes the requests and handles the responses. The plan's [`Mode`] says what a connection
//! is for: many requests, reopened when it is lost, or a single one.

mod connections;
mod engine;
mod line;
mod plan;

pub(crate) use self::plan::{Mode, Outcome, RequestPlan, Traffic};
use crate::BenchError;
use std::sync::atomic::AtomicBool;

/// Makes requests until the traffic ends, the time is over, or `stop` is set.
pub(crate) fn run(
    plan: RequestPlan,
    traffic: &mut impl Traffic,
    stop: &AtomicBool,
) -> Result<Outcome, BenchError> {
    engine::Engine::new(plan, traffic)?.run(stop)
}

#[cfg(test)]
mod tests;
