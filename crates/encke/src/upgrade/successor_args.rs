//! The arguments that a server adds to its own for its successor.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;

use clap::Args;

/// What a successor is started with. A server passes on what it was started with itself.
#[derive(Args, Debug, Default)]
pub(crate) struct SuccessorArgs {
    /// Take over from the server that has started this process
    #[arg(long, hide = true)]
    pub(crate) successor: bool,

    /// The address of the listener that a service manager has handed over
    #[arg(long, hide = true, value_name = "ADDRESS")]
    pub(crate) given_listener: Option<SocketAddr>,

    /// Go on when the terminal closes
    #[arg(long, hide = true)]
    pub(crate) outlive_terminal: bool,
}

impl SuccessorArgs {
    /// The arguments as a command line has them, for a process that is to be a successor.
    pub(super) fn arguments(&self) -> impl Iterator<Item = OsString> {
        let listener = self.given_listener;
        let terminal = self.outlive_terminal.then_some(OUTLIVE_TERMINAL.to_owned());
        [SUCCESSOR.to_owned()]
            .into_iter()
            .chain(listener.map(|address| format!("{GIVEN_LISTENER}{address}")))
            .chain(terminal)
            .map(OsString::from)
    }
}

/// Whether an argument is one that a server has added.
pub(super) fn is_successor_argument(argument: &OsStr) -> bool {
    let text = argument.to_str().unwrap_or_default();
    text == SUCCESSOR || text == OUTLIVE_TERMINAL || text.starts_with(GIVEN_LISTENER)
}

/// What makes a successor.
pub(super) const SUCCESSOR: &str = "--successor";
const OUTLIVE_TERMINAL: &str = "--outlive-terminal";
const GIVEN_LISTENER: &str = "--given-listener=";
