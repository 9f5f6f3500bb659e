//! The filter of the program's log.

use tracing_subscriber::filter::LevelFilter;

/// A filter that hides what libraries say about their internals: it shows that only at level trace, or where the filter names the
/// library. A client of HTTP/2 causes warnings of `h2` at will, and there are requests in them, with their tokens and signatures: they
/// are shown only where the filter names `h2`. The same holds for `async_nats`, whose lines name brokers with their passwords, and for what
/// `ureq` writes at level trace: the heads of the requests to webhooks and issuers.
pub(crate) fn without_internals(filter: &str) -> String {
    let directives = || filter.split(',').map(str::trim);
    let level = directives().rev().find_map(|one| one.parse().ok());
    let mut all = filter.to_owned();
    // Without a level of its own, the filter shows errors of other targets only.
    let Some(level): Option<LevelFilter> = level else {
        return all;
    };
    for (library, shown, name) in LIBRARIES {
        let internals = level == LevelFilter::TRACE && !SECRET.contains(&library);
        if level > shown && !internals && !directives().any(|one| one.starts_with(library)) {
            all += &format!(",{library}={name}");
        }
    }
    all
}

/// The targets of libraries, and the level that is shown of each: the storage engine of history, and HTTP/2.
const LIBRARIES: [(&str, LevelFilter, &str); 5] = [
    ("fjall", LevelFilter::WARN, "warn"),
    ("lsm_tree", LevelFilter::WARN, "warn"),
    (HTTP2, LevelFilter::ERROR, "error"),
    // Its lines name brokers with their passwords.
    (BROKERS, LevelFilter::INFO, "info"),
    // That of `ureq_proto` begins like this, too.
    (CLIENT, LevelFilter::DEBUG, "debug"),
];

/// The libraries whose internals may be secrets.
const SECRET: [&str; 3] = [HTTP2, BROKERS, CLIENT];

/// The target of the library for HTTP/2.
const HTTP2: &str = "h2";

/// The target of the HTTP client, and the beginning of that of its parser.
const CLIENT: &str = "ureq";

/// The target of the client of brokers.
const BROKERS: &str = "async_nats";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_silent_unless_they_are_named() {
        for (filter, expected) in [
            ("info", "info,fjall=warn,lsm_tree=warn,h2=error"),
            (
                "DEBUG",
                "DEBUG,fjall=warn,lsm_tree=warn,h2=error,async_nats=info",
            ),
            (
                "debug, encke_net=trace",
                "debug, encke_net=trace,fjall=warn,lsm_tree=warn,h2=error,async_nats=info",
            ),
            (
                "debug,fjall=debug",
                "debug,fjall=debug,lsm_tree=warn,h2=error,async_nats=info",
            ),
            (
                "debug,fjall::worker=info,lsm_tree=trace,h2=warn,async_nats=debug",
                "debug,fjall::worker=info,lsm_tree=trace,h2=warn,async_nats=debug",
            ),
            ("trace", "trace,h2=error,async_nats=info,ureq=debug"),
            (
                "trace,h2=trace",
                "trace,h2=trace,async_nats=info,ureq=debug",
            ),
            ("warn", "warn,h2=error"),
            ("error", "error"),
            ("off", "off"),
            ("encke_net=debug", "encke_net=debug"),
            ("", ""),
        ] {
            assert_eq!(without_internals(filter), expected, "{filter}");
        }
    }
}
