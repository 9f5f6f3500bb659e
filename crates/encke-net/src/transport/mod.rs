//! How bytes of the application get through a connection's socket.
//!
//! A connection is plain unless [`Flags::ENCRYPTED`] says otherwise; then its state is in a table beside the slots. So a plain
//! connection pays one test of a bit, and its slot stays as small as it is.
//!
//! [`Flags::ENCRYPTED`]: crate::connection::slot::Flags::ENCRYPTED

pub(crate) mod plain;
