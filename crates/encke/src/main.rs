//! Encke.
fn main() {}
