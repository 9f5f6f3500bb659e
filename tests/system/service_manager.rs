//! A service manager: it is told that the server is ready, alive and about to stop, and may hand the listener over.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::rig::{Connection, Encke, Ended, PATIENCE, data_dir, eventually, path, serve};
use crate::upgrades::program;

/// A service manager. It reads at once what it is told: a server that tells it more than its socket holds waits.
struct Manager {
    told: Receiver<String>,
}

impl Manager {
    fn at(path: &Path) -> Manager {
        Manager::with(UnixDatagram::bind(path).expect("a socket"))
    }

    fn with(socket: UnixDatagram) -> Manager {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count) = socket.recv(&mut bytes) {
                let text = String::from_utf8(bytes[..count].to_vec()).expect("text");
                if tell.send(text).is_err() {
                    return;
                }
            }
        });
        Manager { told }
    }

    /// The next message.
    fn told(&self) -> String {
        self.told.recv_timeout(PATIENCE).expect("a message")
    }

    /// Passes messages over up to the one that has this line, which is returned. What comes before says that a server is alive, or that a
    /// successor is ready.
    fn told_of(&self, line: &str) -> String {
        let begin = Instant::now();
        loop {
            let told = self.told();
            if told.lines().any(|one| one == line) {
                return told;
            }
            let is_expected = told.trim() == "WATCHDOG=1" || told.contains("READY=1\n");
            assert!(is_expected, "{told}");
            assert!(begin.elapsed() < PATIENCE, "{line} is not told");
        }
    }

    /// Forgets what it was told up to now.
    fn forget(&self) {
        while self.told.try_recv().is_ok() {}
    }
}

#[test]
fn it_is_told_that_the_server_is_ready_alive_and_stopping() {
    let folder = data_dir();
    let place = folder.path().join("notify");
    let manager = Manager::at(&place);
    let mut command = serve(&folder.path().join("data"), &["--shards", "2"]);
    command.env("NOTIFY_SOCKET", &place);
    command.env("WATCHDOG_USEC", "400000");
    let encke = Encke::start_by(&mut command);
    let ready = manager.told_of("READY=1");
    assert!(ready.contains(&format!("STATUS=serving on {}", encke.address)));
    for _ in 0..3 {
        assert_eq!(manager.told().trim(), "WATCHDOG=1");
    }
    // A server whose threads stand still says nothing.
    encke.freeze();
    std::thread::sleep(Duration::from_millis(500));
    manager.forget();
    std::thread::sleep(Duration::from_millis(500));
    assert!(manager.told.try_recv().is_err());
    encke.signal(Signal::CONT);
    assert_eq!(manager.told().trim(), "WATCHDOG=1");
    let stopped = encke.terminate();
    assert_eq!(stopped.code, Some(0));
    manager.told_of("STOPPING=1");
}

/// A socket whose name is in no directory begins with `@` in the variable (sd_notify(3)).
#[test]
fn it_may_listen_at_an_abstract_socket() {
    let folder = data_dir();
    let name = format!("encke-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let manager = Manager::with(UnixDatagram::bind_addr(&address).expect("a socket"));
    let mut command = serve(folder.path(), &[]);
    command.env("NOTIFY_SOCKET", format!("@{name}"));
    let encke = Encke::start_by(&mut command);
    manager.told_of("READY=1");
    let stopped = encke.terminate();
    assert!(!stopped.log.contains("service manager"), "{}", stopped.log);
    manager.told_of("STOPPING=1");
}

/// Runs a command with a listener as the first descriptor that a service manager hands over.
const HAND_OVER: &str = "
import os, socket, sys
listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen(16)
os.dup2(listener.fileno(), 3)
os.set_inheritable(3, True)
os.environ['LISTEN_PID'] = str(os.getpid())
os.environ['LISTEN_FDS'] = sys.argv[1]
if sys.argv[1] == '2': os.dup2(3, 4)
os.execvp(sys.argv[2], sys.argv[2:])
";

fn handed_over(count: &str, data: &Path, flags: &[&str]) -> Command {
    let served = serve(data, flags);
    let mut command = Command::new("python3");
    command.args(["-c", HAND_OVER, count]);
    command.arg(served.get_program()).args(served.get_args());
    for (name, value) in served.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

#[test]
fn it_may_hand_the_listener_over() {
    let folder = data_dir();
    for shards in ["1", "3"] {
        let data = folder.path().join(shards);
        let mut command = handed_over("1", &data, &["--shards", shards]);
        let encke = Encke::start_by(&mut command);
        encke.create("s");
        let mut connections: Vec<Connection> = (0..20).map(|_| encke.connect()).collect();
        for (number, connection) in (1..).zip(&mut connections) {
            connection.append("s", number);
        }
        assert_eq!(encke.numbers("s"), (1..=20).collect::<Vec<u64>>());
        assert_eq!(encke.ask("GET", &path("s"), &[], b"").status, 200);
        assert_eq!(encke.terminate().code, Some(0));
    }
    // One listener is what it is for.
    let refused = Encke::try_start_by(&mut handed_over("2", &folder.path().join("2"), &[]));
    let ended = refused.err().expect("it does not start");
    assert_eq!(ended.code, Some(4));
    assert!(
        ended.stderr.contains("2 sockets were handed over"),
        "{ended:?}"
    );
}

#[test]
fn a_server_with_its_listener_can_be_upgraded() {
    let data = data_dir();
    let encke = Encke::start_by(&mut handed_over("1", data.path(), &[]));
    encke.create("s");
    let mut idle = encke.connect();
    for number in 1..=2 {
        let ended = Ended::of(crate::rig::command(&["upgrade", "--json"]).arg(data.path()));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        idle.append("s", number);
        assert_eq!(encke.connect().ask("GET", &path("s"), &[], b"").status, 200);
    }
    assert_eq!(encke.numbers("s"), [1, 2]);
    assert_eq!(encke.terminate().code, Some(0));
}

/// Gives a command what systemd gives the processes that it starts.
fn under_systemd<'a>(command: &'a mut Command, notify_socket: &Path) -> &'a mut Command {
    command
        .env("NOTIFY_SOCKET", notify_socket)
        .env("INVOCATION_ID", "0123456789abcdef0123456789abcdef")
}

#[test]
fn the_process_that_a_manager_other_than_systemd_follows_stays_after_an_upgrade() {
    let folder = data_dir();
    let (place, data) = (folder.path().join("notify"), folder.path().join("data"));
    let manager = Manager::at(&place);
    let encke = Encke::start_by(serve(&data, &[]).env("NOTIFY_SOCKET", &place));
    manager.told_of("READY=1");
    let ended = Ended::of(crate::rig::command(&["upgrade"]).arg(&data));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // It passes the signal on to its successor, and ends after it.
    assert_eq!(encke.terminate().code, Some(0));
    manager.told_of("STOPPING=1");
    let ended = Ended::of(crate::rig::command(&["log", "check"]).arg(&data));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn it_learns_which_process_is_the_server_after_an_upgrade_and_that_it_is_alive() {
    let folder = data_dir();
    let (place, data) = (folder.path().join("notify"), folder.path().join("data"));
    let manager = Manager::at(&place);
    let of_server = serve(&data, &[]);
    // The number that is to say that it is alive, as systemd sets it.
    let mut command = Command::new("sh");
    command
        .args(["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh"])
        .arg(of_server.get_program())
        .args(of_server.get_args())
        .env("WATCHDOG_USEC", "400000");
    let encke = Encke::start_by(under_systemd(&mut command, &place));
    manager.told_of("READY=1");
    assert_eq!(manager.told().trim(), "WATCHDOG=1");
    let ended = Ended::of(crate::rig::command(&["upgrade", "--json"]).arg(&data));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).expect("a report");
    let successor = report["process"].as_i64().expect("a process");
    let main = format!("MAINPID={successor}");
    manager.told_of(&main);
    // The process before has ended, and what still comes is the successor's.
    assert_eq!(encke.wait().code, Some(0));
    manager.forget();
    for _ in 0..3 {
        manager.told_of("WATCHDOG=1");
    }
    let successor = rustix::process::Pid::from_raw(successor as i32).expect("a number");
    rustix::process::kill_process(successor, Signal::TERM).expect("it is ours");
    manager.told_of("STOPPING=1");
}

/// systemd reports the end of its own children only, and kills at once what is not its child when it is to stop.
#[test]
fn a_successor_is_a_child_of_the_service_manager_before_it_is_its_main_process() {
    let folder = data_dir();
    let (place, data) = (folder.path().join("notify"), folder.path().join("data"));
    let _manager = Manager::at(&place);
    let encke = Encke::start_by(under_systemd(&mut serve(&data, &[]), &place));
    let (directory, file) = program("echo $$ > \"${0%/*}/begun\"; exec sleep 600");
    let mut asking = crate::rig::command(&["upgrade", "--program"]);
    let mut asking = asking
        .arg(&file)
        .arg(&data)
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let mut successor = String::new();
    eventually("a successor is being prepared", || {
        let begun = std::fs::read_to_string(directory.path().join("begun"));
        successor = begun.unwrap_or_default().trim().to_owned();
        !successor.is_empty()
    });
    let parent = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some(parent.trim().to_owned())
    };
    let server = encke.pid().to_string();
    eventually("the successor is nothing of the server", || {
        let parent_of_successor = parent(&successor).expect("it is being prepared");
        parent_of_successor != server && parent(&parent_of_successor) != Some(server.clone())
    });
    // It ends with the server all the same.
    assert_eq!(encke.terminate().code, Some(0));
    eventually("the successor has ended", || {
        std::fs::read_to_string(format!("/proc/{successor}/stat"))
            .map_or(true, |stat| stat.contains(") Z "))
    });
    asking.wait().expect("it ends with the server");
}
