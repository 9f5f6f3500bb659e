//! Attacks on tokens, signed URLs and API keys, by name; and what must work beside them.

#![allow(clippy::unwrap_used)] // What helps a test may panic as the test may.

mod fetched_keys;
mod other_credentials;
mod reload;
mod rig;
mod tokens;
mod works;
