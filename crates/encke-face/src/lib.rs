//! The protocols, sans-IO: a parsed request in, a response, subscription or commit to wait for out.
