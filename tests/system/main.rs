//! Tests of the whole: the real binary, real sockets, a real disk.
//!
//! Every test starts its own servers, on ports that the system chooses and in their own directories, and sends raw bytes. It checks
//! what a client, an operator or the disk sees, nothing internal.
//!
//! - [`bad_http`], [`bad_requests`]: any input gets a definite response, is counted, and disturbs no other client.
//! - [`conversation`]: HTTP/1.1 as it may rightly be spoken, however the bytes are cut.
//! - [`catch_up`]: one response with everything, of any length.
//! - [`clock_steps`]: the time of day is set, and durations last as long as before.
//! - [`compression`]: compressed reads are what their client asked for, and decode to what was appended.
//! - [`cut_characters`]: readers of text get whole characters, however appends cut them.
//! - [`delivery`]: every subscriber gets every record once and in order.
//! - [`backpressure`]: publishers wait while most subscribers of their stream lag.
//! - [`round_delays`]: records that come faster than rounds of sends go out together.
//! - [`late_subscribers`]: also those that connect while records are published.
//! - [`hostile`]: hostile clients beside good ones.
//! - [`http2`]: the same requests and responses on the streams of an HTTP/2 connection.
//! - [`http2_limits`]: each bound of an HTTP/2 connection is reached, and has its answer and its count.
//! - [`limits`]: limits per client address, and in total.
//! - [`limits_of_wires`]: each limit over HTTP/1.1 and over HTTP/2.
//! - [`proxies`]: the client of a proxied connection, from trusted proxies only.
//! - [`older_data`]: data of earlier versions opens.
//! - [`overload`]: at a limit requests get a clear 503, and nothing is lost or invented.
//! - [`multi_stream`]: several streams over one connection.
//! - [`recreated_streams`]: no position leads into a stream that was created later under the same name.
//! - [`several_logs`]: streams spread over logs, and one that is lost or full.
//! - [`slow_clients`]: their limits, the reason that they get, and that none takes a part for the whole.
//! - [`access`]: who may do what, what is concealed, and what ends when credentials end.
//! - [`access_log`]: a line for each request, which no client can forge, and no output that blocks or fails stops the server.
//! - [`at_rest`]: unused streams leave memory, and are loaded when a request names them.
//! - [`durability`]: what was acknowledged survives crashes, and damage is never ignored.
//! - [`damaged_directory`]: a directory that is damaged from outside is served whole or not at all.
//! - [`tls`]: HTTP/1.1 over TLS, certificates, handshakes.
//! - [`tls_clients`]: no client of TLS shuts out another one, outlives its certificate, or leaves its keys behind.
//! - [`sync_every`]: which records below level `synced` a power cut can take.
//! - [`busy_threads`]: no thread is busy in a failed state.
//! - [`confined`]: servers of which a sandbox or a file system refuses calls.
//! - [`disk`]: disks that fail and disks that are full.
//! - [`failing_reads`]: a server is not ready while it cannot read its files.
//! - [`fleet`]: several nodes on real brokers are one server, and none acknowledges what the others do not get.
//! - [`fleet_copy`]: a node that the brokers cannot bring up to date copies the log of another one.
//! - [`fleet_older_store`]: no node goes on without what another one has applied and the brokers have lost.
//! - [`fleet_repair`]: nodes continue with the longest history when the brokers have lost the order.
//! - [`frozen`]: a server that stood still cuts no client that did its part.
//! - [`full_stderr`]: a full disk under standard error changes nothing else.
//! - [`live_readers`]: a stream with live readers does not expire.
//! - [`log_commands`]: `encke log` finds damage, names it, and repairs it.
//! - [`secret_files`]: files for the server's own user, and warnings about secrets that all users can read.
//! - [`sealing`]: the bound on sealed segments that wait for history.
//! - [`retention`]: records past their age or size are removed, and readers get an error.
//! - [`poisoned_log`]: the failure of one of several logs affects only its own streams.
//! - [`pool_limits`]: bounds of pools, and the exclusion of pools and retention.
//! - [`pools`]: every job is done although workers and the server die.
//! - [`memory`]: what connections hold is bounded for each client, and no client can take the memory of others.
//! - [`vanished`]: clients of which no packet arrives any more.
//! - [`mistakes`]: the answers to mistakes at the command line and over HTTP, in a golden file.
//! - [`hang_ups`]: SIGHUP is a reload, or the end of the terminal.
//! - [`obstacles`]: `serve --check`, `doctor` and a start agree on what keeps a server from starting.
//! - [`binary`]: settings, exit codes, signals, logs.

mod access;
mod access_log;
mod at_rest;
mod backpressure;
mod bad_http;
mod bad_requests;
mod banner;
mod binary;
mod busy_threads;
mod catch_up;
mod clock_steps;
mod compression;
mod confined;
mod conversation;
mod cut_characters;
mod damaged_directory;
mod delivery;
mod disk;
mod durability;
mod failing_reads;
mod fleet;
mod fleet_brokers;
mod fleet_copy;
mod fleet_older_store;
mod fleet_pools;
mod fleet_repair;
mod frozen;
mod full_stderr;
mod generations;
mod hang_ups;
mod hostile;
mod http2;
mod http2_limits;
mod http2_reads;
mod late_subscribers;
mod levels;
mod limits;
mod limits_of_wires;
mod live_readers;
mod log_commands;
mod memory;
mod mistakes;
mod multi_stream;
mod obstacles;
mod older_data;
mod overload;
mod patterns;
mod poisoned_log;
mod pool_limits;
mod pools;
#[path = "../ports.rs"]
mod ports;
mod positions;
mod proxies;
mod recreated_streams;
mod retention;
mod rig;
mod round_delays;
mod sealing;
mod secret_files;
mod several_logs;
mod slow_clients;
mod sync_every;
mod tls;
mod tls_clients;
mod vanished;
