//! Tests of the whole: the real binary, real sockets, a real disk.
//!
//! Every test starts servers of its own on ports that the system chooses, in directories of their own, and speaks to them
//! in raw bytes. What a test claims is what a client, an operator or the disk would see; nothing looks inside.
//!
//! - [`bad_http`], [`bad_requests`]: whatever is sent, the answer is definite, counted, and nobody else notices.
//! - [`conversation`]: HTTP/1.1 as it may rightly be spoken, however the bytes are cut.
//! - [`catch_up`]: one answer with everything, however long.
//! - [`delivery`]: every subscriber gets every record once and in order.
//! - [`latecomers`]: also those that come while records do.
//! - [`hostile`]: a crowd of clients that mean no good, beside those that do.
//! - [`limits`]: what one client address may, and what all may together.
//! - [`proxies`]: who the client is when somebody else hands it on, and whose word counts.
//! - [`older_data`]: data of earlier versions opens.
//! - [`overload`]: at a limit the answer is a clear 503, and nothing is lost or made up.
//! - [`several`]: several streams over one connection.
//! - [`several_logs`]: streams spread over logs, and one that is lost or full.
//! - [`slow_clients`]: what they may hold up, how they are told, and that nobody takes a part for the whole.
//! - [`at_rest`]: streams that nobody uses leave memory, and are there again when they are named.
//! - [`durability`]: what was acknowledged survives crashes, and damage is never passed over.
//! - [`damaged_directory`]: a directory that is damaged from outside is served whole or not at all.
//! - [`sync_every`]: what a power cut may take of what was acknowledged early.
//! - [`disk`]: disks that fail and disks that are full.
//! - [`failing_reads`]: a server that can't read its files is not ready, and is again when it can.
//! - [`full_stderr`]: a full disk under standard error changes nothing else.
//! - [`log_commands`]: `encke log` finds damage, names it, and repairs it.
//! - [`sealing`]: how many sealed segments may wait for history.
//! - [`retention`]: what is past its time or size goes, and readers are told.
//! - [`poisoned_log`]: one of several logs fails, and takes only its own streams along.
//! - [`pool_limits`]: what is too much for pools is refused, and retention takes no jobs.
//! - [`pools`]: jobs are done though workers and the server die.
//! - [`binary`]: settings, exit codes, signals, logs.

mod at_rest;
mod bad_http;
mod bad_requests;
mod binary;
mod catch_up;
mod conversation;
mod crowds;
mod damaged_directory;
mod delivery;
mod disk;
mod durability;
mod failing_reads;
mod full_stderr;
mod hostile;
mod jams;
mod latecomers;
mod levels;
mod limits;
mod log_commands;
mod older_data;
mod overload;
mod poisoned_log;
mod pool_limits;
mod pools;
mod proxies;
mod retention;
mod rig;
mod sealing;
mod several;
mod several_logs;
mod slow_clients;
mod sync_every;
