//! Upgrades in place: a running server gives its listeners, its connections and its log to a successor, which may be another version.
//!
//! The server starts the successor (`predecessor`): what its command names (`named_program`), with the same command line and what the
//! successor can't see by itself (`successor_args`). It reads its configuration and says that it can go on
//! (`successor`); until then nothing was touched. The server finishes the requests in work, sends what it knows of each connection with
//! its socket, and closes the log (`wire` has the messages). The successor opens the log, takes the connections over, and serves when the server has let go. If anything
//! fails before that, the server opens its log again and takes its own connections back, which it tries until it serves. Both keep the
//! directories of the logs locked all the time.
//!
//! `successor_process` is the process of the successor, which is a child of the service manager where there is one.
//! `control` is the socket at which a server is asked to upgrade, `command` the command that does. `attendant` is what stays of the first server where
//! no service manager follows.

mod attendant;
mod command;
mod control;
mod named_program;
mod predecessor;
mod successor;
mod successor_args;
mod successor_process;
mod wire;

pub(crate) use attendant::Attendant;
pub(crate) use command::{UpgradeArgs, upgrade};
pub(crate) use control::{
    UpgradeAnswer, UpgradeAsker, UpgradeReport, UpgradeRequest, UpgradeSocket,
};
pub(crate) use predecessor::{HandedOver, Launcher, PreparedSuccessor, not_upgraded, reset_all};
pub(crate) use successor::{MovingIn, Successor};
pub(crate) use successor_args::SuccessorArgs;
pub(crate) use successor_process::{Parent, SuccessorProcess, is_starter, start_for_server};
pub(crate) use wire::ServerShape;
