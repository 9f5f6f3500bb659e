//! SIGHUP: a reload, or the end of the terminal.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use crate::rig::{
    Encke, Ended, JSON, command, data_dir, eventually, path, serve, without_settings,
};

#[test]
fn a_hang_up_reloads_the_configuration() {
    let data = data_dir();
    let file = data.path().join("encke.toml");
    let write = |log: &str| std::fs::write(&file, format!("log = '{log}'")).expect("it is ours");
    write("error");
    let config = file.to_str().expect("it is text");
    let mut serve = serve(&data.path().join("data"), &["--config", config]);
    let encke = Encke::start_by(serve.env_remove("ENCKE_LOG"));
    write("no=such=filter");
    encke.signal(Signal::HUP);
    eventually("a wrong configuration changes nothing", || {
        encke.log().contains("nothing was reloaded")
    });
    write("info");
    encke.signal(Signal::HUP);
    // At the level before, this line is not logged.
    eventually("the filter is replaced", || {
        encke.log().contains("reloaded the configuration")
    });
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
}

/// A terminal. A program holds its controlling end, because to open one takes more than the standard library has.
struct Terminal {
    holder: Child,
    name: String,
}

impl Terminal {
    fn open() -> Terminal {
        const HOLD: &str = "import os, sys\n\
            controller, terminal = os.openpty()\n\
            print(os.ttyname(terminal), flush=True)\n\
            os.close(terminal)\n\
            sys.stdin.read()";
        let mut holder = Command::new("python3")
            .args(["-c", HOLD])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python is there");
        let mut name = String::new();
        let output = holder.stdout.take().expect("it was asked for");
        let read = BufReader::new(output).read_line(&mut name);
        read.expect("it prints text");
        let name = name.trim_end().to_owned();
        Terminal { holder, name }
    }

    /// The command that serves with this terminal as its controlling one. It keeps its process number, and takes SIGHUP also when
    /// the tests run under nohup.
    fn serve(&self, data: &Path, before: &[&str]) -> Command {
        let serve = serve(data, &["--log", "info"]);
        let mut command = Command::new("sh");
        let script = "terminal=$1; shift; exec env --default-signal=HUP setsid --ctty \"$@\" < \"$terminal\"";
        command
            .args(["-c", script, "sh", &self.name])
            .args(before)
            .arg(serve.get_program())
            .args(serve.get_args());
        without_settings(&mut command);
        command
    }

    /// Hangs up, as the window of a terminal does when it is closed.
    fn close(self) {}
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The kernel sends SIGHUP when a terminal closes, and the shell sends another one to its jobs.
#[test]
fn a_closed_terminal_is_a_stop_and_further_hang_ups_change_nothing() {
    let data = data_dir();
    let terminal = Terminal::open();
    let encke = Encke::start_by(&mut terminal.serve(data.path(), &[]));
    encke.create("s");
    // With the terminal there, it is a reload.
    encke.signal(Signal::HUP);
    eventually("the configuration is reloaded", || {
        encke.log().contains("reloaded the configuration")
    });
    // It makes the stop wait.
    let _stalled = encke.subscribe("s", "-1");
    let mut connection = encke.connect();
    let body = format!("\"{}\"", "x".repeat(100 << 10));
    for _ in 0..150 {
        let answer = connection.ask("POST", &path("s"), &[JSON], body.as_bytes());
        assert_eq!(answer.status, 204);
    }
    terminal.close();
    eventually("the server stops", || encke.log().contains("stopping;"));
    let stopped = encke.stop(Signal::HUP);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.log.contains("stopped"), "{stopped:?}");
    let encke = Encke::start_in(data.path(), &[]);
    assert_eq!(encke.messages("s").len(), 150);
}

#[test]
fn without_hang_ups_the_server_outlives_its_terminal() {
    let data = data_dir();
    let terminal = Terminal::open();
    let encke = Encke::start_by(&mut terminal.serve(data.path(), &["nohup"]));
    terminal.close();
    // It leads the session, so the kernel has sent it a SIGHUP.
    eventually("the hang-up is a reload", || {
        encke.log().contains("reloaded the configuration")
    });
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
}

/// A program that is started takes SIGHUP again, whatever the one before has done with it.
#[test]
fn without_hang_ups_an_upgraded_server_outlives_its_terminal_too() {
    let data = data_dir();
    let terminal = Terminal::open();
    let encke = Encke::start_by(&mut terminal.serve(data.path(), &["nohup"]));
    for _ in 0..2 {
        let ended = Ended::of(command(&["upgrade", "--json"]).arg(data.path()));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    terminal.close();
    // As a shell sends it to its jobs when it ends; the kernel's, which the leader of a session gets alone, may stand for both.
    eventually("the hang-up is a reload", || {
        encke.signal(Signal::HUP);
        encke.log().contains("reloaded the configuration")
    });
    assert_eq!(encke.ask("GET", "/readyz", &[], b"").status, 200);
    assert_eq!(encke.terminate().code, Some(0));
}
