//! Bytes become what proxies say: the header of the PROXY protocol is found whole or not at all, and fields name a host or none.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| encke_net::fuzzing::proxies(data));
