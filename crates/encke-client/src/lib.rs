//! The client of all outgoing HTTP requests: of a server for keys of issuers, webhooks and traces, and of commands.
//!
//! # The rules
//!
//! They hold for every request, because this crate is the only place that makes clients (`clippy.toml` forbids others):
//!
//! - A proxy is used only if the settings name one. Variables of the environment name none. It is not used for `localhost`, `127.*` and `[::1]`.
//! - No redirect is followed: it would carry credentials to another server.
//! - Names are looked up as [`encke_threads`] does, so that no look-up starts a thread that panics.
//! - A status is no error: each caller says which ones it accepts.
//! - Certificates are verified with the roots of the system.
//!
//! Callers add time limits, and fields of their own.

mod checked_proxy;
mod http_proxy;
mod resolver;
mod rules;

pub use http_proxy::HttpProxy;
pub use resolver::name_of;
pub use rules::{ClientRules, checked_client, client};
