//! Listeners at link-local addresses, which are those of an interface.

use std::process::Command;

use crate::rig::{Ended, can_use, command, data_dir, serve_on};

/// Runs a command in a network of its own, whose loopback interface has a link-local address.
fn in_own_network(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--net", "sh", "-euc"]);
    command.arg(format!(
        "ip link set lo up; ip address add fe80::77/64 dev lo nodad; {script}"
    ));
    command
}

/// Asks the server at each port, and then ends it.
const ASK: &str = r#"
"$0" "$@" &
python3 -c '
import socket, time
for port in (4600, 4601):
    while True:
        try: client = socket.create_connection(("fe80::77%lo", port), 60); break
        except ConnectionRefusedError: time.sleep(0.05)
    client.sendall(b"GET /healthz HTTP/1.1\r\nHost: [fe80::77]\r\n\r\n")
    print(client.recv(100).split(b"\r\n")[0].decode())
'
kill $!
wait $!
"#;

#[test]
fn a_link_local_address_is_listened_on_by_the_name_of_its_interface() {
    let works = || in_own_network("true").status();
    if !can_use("unshare", || works().is_ok_and(|status| status.success())) {
        return;
    }
    let data = data_dir();
    let flags = ["--admin-listen", "[fe80::77%1]:4601", "--open"];
    let serve = serve_on("[fe80::77%lo]:4600", data.path(), &flags);
    let mut command = in_own_network(ASK);
    command.arg(serve.get_program()).args(serve.get_args());
    let served = Ended::of(&mut command);
    assert_eq!(served.code, Some(0), "{served:?}");
    for line in [
        "listening on http://[fe80::77%25lo]:4600\n",
        "for operators on http://[fe80::77%25lo]:4601\n",
    ] {
        assert!(served.stdout.contains(line), "{served:?}");
    }
    assert_eq!(
        served.stdout.matches("HTTP/1.1 200 OK\n").count(),
        2,
        "{served:?}"
    );
}

#[test]
fn an_unknown_interface_is_named() {
    let check = ["serve", "--check", "--listen", "[fe80::77%nothing0]:4600"];
    let refused = Ended::of(&mut command(&check));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let why = "there is no network interface nothing0";
    assert!(refused.stderr.contains(why), "{refused:?}");
}
