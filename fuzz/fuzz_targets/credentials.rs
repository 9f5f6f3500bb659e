//! Bytes become a request with credentials: paths are canonical or refused, and no forged credential is accepted.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_access::fuzzing::credentials(data));
