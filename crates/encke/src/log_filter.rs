//! The filter of the program's log.

use tracing_subscriber::filter::LevelFilter;

/// A filter that hides what the storage engine of history says about its internals: below level warn, it shows them only at level
/// trace, or where the filter names the engine.
pub(crate) fn without_internals(filter: &str) -> String {
    let directives = || filter.split(',').map(str::trim);
    let level = directives().rev().find_map(|one| one.parse().ok());
    // Without a level of its own, the filter shows errors of other targets only.
    let hides = level
        .is_some_and(|level: LevelFilter| level > LevelFilter::WARN && level < LevelFilter::TRACE);
    let mut all = filter.to_owned();
    for engine in ENGINE.iter().filter(|_| hides) {
        if !directives().any(|one| one.starts_with(engine)) {
            all += &format!(",{engine}=warn");
        }
    }
    all
}

/// The targets of the storage engine.
const ENGINE: [&str; 2] = ["fjall", "lsm_tree"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_silent_unless_it_is_named() {
        for (filter, expected) in [
            ("info", "info,fjall=warn,lsm_tree=warn"),
            ("DEBUG", "DEBUG,fjall=warn,lsm_tree=warn"),
            (
                "debug, encke_net=trace",
                "debug, encke_net=trace,fjall=warn,lsm_tree=warn",
            ),
            ("debug,fjall=debug", "debug,fjall=debug,lsm_tree=warn"),
            (
                "debug,fjall::worker=info,lsm_tree=trace",
                "debug,fjall::worker=info,lsm_tree=trace",
            ),
            ("trace", "trace"),
            ("warn", "warn"),
            ("error", "error"),
            ("off", "off"),
            ("encke_net=debug", "encke_net=debug"),
            ("", ""),
        ] {
            assert_eq!(without_internals(filter), expected, "{filter}");
        }
    }
}
