//! Webhooks: which URLs they may have, what they are called with, and the threads that call them.

pub(crate) mod addresses;
pub(crate) mod caller;
pub(crate) mod deliverer;
pub(crate) mod delivery;
pub(crate) mod resolver;
pub(crate) mod signature;
pub(crate) mod url;
