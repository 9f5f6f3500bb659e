//! Where the binary's memory comes from.
//!
//! A server works in bursts: a sealed segment is sorted, a checkpoint is gathered, many clients come and go. jemalloc gives
//! pages back that nothing has used for a second, on a thread of its own, whichever thread had them; glibc keeps what a
//! thread once had (docs/decisions/0015). Its settings are compiled in: see `.cargo/config.toml`.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[cfg(test)]
mod tests {
    use tikv_jemalloc_ctl::opt;

    /// A build outside the repository's directory, where cargo does not read its settings, would do without them.
    #[test]
    #[ignore = "make test-all builds with jemalloc"]
    fn the_settings_are_compiled_in() {
        assert!(opt::background_thread::read().unwrap());
        assert_eq!(opt::narenas::read().unwrap(), 1);
        assert_eq!(opt::tcache_max::read().unwrap(), 4096);
    }
}
