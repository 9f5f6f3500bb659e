//! Bytes become a connection's input, and this parser and hyper find the same requests in it, but for known differences.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_net::fuzzing::request_hyper(data));
