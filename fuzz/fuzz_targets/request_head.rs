//! Bytes become a connection's input: whatever pieces they come in, the same requests are found, each with one length.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_net::fuzzing::request_head(data));
