//! The limits of this process on resources.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit of this process. None if nothing tells it: a sandbox may refuse the call, and the file of the system with it.
pub(crate) fn limit(resource: Resource) -> Option<Rlimit> {
    // `getrlimit` takes a refusal for an answer. The kernel looks at what is asked for only if a process may ask: a limit above
    // its own maximum is never set.
    let impossible = Rlimit {
        current: Some(1),
        maximum: Some(0),
    };
    if setrlimit(resource, impossible) == Err(Errno::INVAL) {
        return Some(getrlimit(resource));
    }
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    in_list(&limits, name(resource)?)
}

/// The limit with this name in the content of `/proc/self/limits`.
fn in_list(limits: &str, name: &str) -> Option<Rlimit> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    let mut values = line.split_ascii_whitespace().map(|value| match value {
        "unlimited" => Some(None),
        value => value.parse().ok().map(Some),
    });
    Some(Rlimit {
        current: values.next()??,
        maximum: values.next()??,
    })
}

fn name(resource: Resource) -> Option<&'static str> {
    match resource {
        Resource::Nofile => Some("Max open files"),
        Resource::Fsize => Some("Max file size"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_the_system_tells_the_same_as_the_call() {
        let limits = std::fs::read_to_string("/proc/self/limits").expect("it can be read");
        for resource in [Resource::Nofile, Resource::Fsize] {
            let called = getrlimit(resource);
            assert_eq!(limit(resource), Some(called));
            let listed = in_list(&limits, name(resource).expect("it has one"));
            assert_eq!(listed, Some(called));
        }
    }

    #[test]
    fn a_limit_may_be_missing_or_none() {
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax file size  unlimited  4096  bytes\n";
        let none = Rlimit {
            current: None,
            maximum: Some(4096),
        };
        assert_eq!(in_list(limits, "Max file size"), Some(none));
        assert_eq!(in_list(limits, "Max open files"), None);
        assert_eq!(in_list("Max open files  what", "Max open files"), None);
    }
}
