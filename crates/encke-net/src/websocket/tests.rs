//! Tests of the framing as a whole.

mod autobahn;
mod autobahn_compressed;
pub(crate) mod client;
mod deflating;
mod flooding;
mod interoperability;
mod text;
