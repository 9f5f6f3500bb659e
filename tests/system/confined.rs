//! Servers that a sandbox or a file system confines: calls that are refused or unknown keep none from serving.

use crate::rig::{Encke, JSON, data_dir, path, serve, strace_works, traced};

/// A server some of whose system calls fail from its first moment on.
fn start(data: &std::path::Path, inject: &str) -> Encke {
    let inject = format!("inject={inject}");
    let how = ["-o", "/dev/null", "-e", &inject];
    Encke::start_by(&mut traced(how, &serve(data, &[])))
}

fn serves(encke: Encke) {
    encke.create("s");
    assert_eq!(encke.ask("POST", &path("s"), &[JSON], b"1").status, 204);
    assert_eq!(encke.numbers("s"), [1]);
    assert_eq!(encke.terminate().code, Some(0));
}

#[test]
fn limits_that_may_not_be_asked_for_let_connections_in() {
    if !strace_works() {
        return;
    }
    for error in ["EPERM", "ENOSYS"] {
        let data = data_dir();
        serves(start(data.path(), &format!("prlimit64:error={error}")));
    }
}

#[test]
fn segments_are_filled_where_they_cannot_be_reserved() {
    if !strace_works() {
        return;
    }
    for fault in [
        "error=ENOSYS",
        "error=EPERM",
        "error=EOPNOTSUPP",
        "error=EINTR:when=1",
    ] {
        let data = data_dir();
        serves(start(data.path(), &format!("fallocate:{fault}")));
        let segment = crate::rig::first_segment(data.path());
        let bytes = segment.metadata().expect("there is one").len();
        assert_eq!(bytes, 64 << 20, "{fault}");
    }
}
