//! Bytes become what happens to a connection, in any order: nothing is left of it, and responses do not depend on splits.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_net::fuzzing::connection(data));
