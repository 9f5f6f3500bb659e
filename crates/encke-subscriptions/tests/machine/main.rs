//! The subscriptions over streams on simulated disks: what each request, commit, response, crash and pause brings about.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod asked;
mod bounds;
mod driver;
mod events;
mod fences;
mod journal;
mod known;
mod links;
mod look_ups;
mod model;
mod power_cuts;
mod pull;
mod random;
mod retries;
mod segments;
mod streams;
mod webhooks;
mod world;
