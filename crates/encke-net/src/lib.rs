//! The reactor: shards, HTTP/1.1, slots, delivery, timers.
