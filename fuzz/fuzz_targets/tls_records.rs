//! Bytes become records whole or not at all, and no bytes of a stranger make a handshake.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_net::fuzzing::tls_records(data));
