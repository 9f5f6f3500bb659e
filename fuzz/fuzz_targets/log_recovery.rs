//! Bytes become the files of a log: opening them never panics and never gives a record whose checksum is wrong.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_log::fuzzing::log_recovery(data));
