//! A thread that fails: the server does not continue without it. It stops in order, says why, and starts again with all records.

use crate::rig::{Encke, Slowed, data_dir, eventually, strace_works};

#[test]
fn a_shard_that_fails_stops_the_server_in_order() {
    if !strace_works() {
        return;
    }
    let data = data_dir();
    let encke = Encke::start_in(data.path(), &["--shards", "2"]);
    encke.create("s");
    encke.connect().append("s", 1);
    let waits = "epoll_wait,epoll_pwait,epoll_pwait2";
    let slowed = Slowed::new(&encke, "shard-1", &format!("{waits}:error=EBADF"));
    let stopped = encke.wait();
    drop(slowed);
    assert_eq!(stopped.code, Some(1), "{}", stopped.log);
    let why = "the thread shard-1 has failed";
    assert!(stopped.log.contains(why), "{}", stopped.log);
    let encke = Encke::start_in(data.path(), &[]);
    eventually("it serves", || {
        encke.ask("GET", "/readyz", &[], b"").status == 200
    });
    assert_eq!(encke.numbers("s"), [1]);
    assert_eq!(encke.terminate().code, Some(0));
}
