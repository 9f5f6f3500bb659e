//! Tests of the whole: the real binary, real sockets, a real disk.
//!
//! Every test starts its own servers, on ports that the system chooses and in their own directories, and sends raw bytes. It checks
//! what a client, an operator or the disk sees, nothing internal.
//!
//! The first lines of each file say what it tests; `rig` starts servers and clients.

mod access;
mod access_log;
mod answers;
mod at_rest;
mod backpressure;
mod backups;
mod backups_bucket;
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
mod cut_producers;
mod damaged_directory;
mod delivery;
mod disk;
mod durability;
mod ephemeral;
mod failing_reads;
#[path = "../faulty_server/mod.rs"]
mod faulty_server;
mod fleet;
mod fleet_brokers;
mod fleet_copy;
mod fleet_older_store;
mod fleet_pools;
mod fleet_repair;
mod fleet_rolling;
mod frozen;
mod full_stderr;
mod generations;
mod hang_ups;
mod health;
mod hostile;
mod http2;
mod http2_limits;
mod http2_reads;
mod hung_stderr;
mod import;
mod last_messages;
mod late_subscribers;
mod levels;
mod limits;
mod limits_of_wires;
mod live_readers;
mod log_commands;
mod long_records;
mod memory;
mod mistakes;
mod multi_stream;
mod obstacles;
mod older_data;
mod operator_api;
mod overload;
mod own_state;
mod patterns;
mod poisoned_log;
mod pool_limits;
mod pools;
#[path = "../ports.rs"]
mod ports;
mod positions;
mod presence;
mod proxies;
mod pusher;
mod recreated_streams;
mod restores;
mod retention;
mod rig;
mod round_delays;
mod sealing;
mod secret_files;
mod service_manager;
mod several_logs;
mod slow_clients;
mod subscriptions;
mod sync_every;
mod times;
mod tls;
mod tls_clients;
mod traces;
mod upgrades;
mod vanished;
mod websocket;
mod websocket_http2;
