//! Mistakes at the command line and over HTTP, and the answer to each.
//!
//! `mistakes.txt` beside this file is a transcript: commands as a user types them, behind `$`, and what they print. The test runs
//! the commands against a fresh server and compares. After a change of an answer, rewrite the file and review the difference:
//! `MISTAKES=update cargo test --locked -p encke --test system mistakes`.

use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

use tempfile::TempDir;

use crate::rig::{Encke, Ended, without_settings};

#[test]
fn every_mistake_gets_its_answer() {
    let shell = Shell::start();
    let written = std::fs::read_to_string(FILE).expect("the file is part of the repository");
    let transcript = shell.transcript(&written);
    if std::env::var_os("MISTAKES").is_some_and(|value| value == "update") {
        std::fs::write(FILE, &transcript).expect("the repository can be written");
        return;
    }
    for (line, (written, now)) in written.lines().zip(transcript.lines()).enumerate() {
        let line = line + 1;
        assert_eq!(written, now, "{FILE}:{line} differs\n{transcript}");
    }
    assert_eq!(written, transcript, "{FILE} ends elsewhere");
}

#[test]
fn the_transcript_has_forty_mistakes() {
    let written = std::fs::read_to_string(FILE).expect("the file is part of the repository");
    let mistakes = |part: &str| {
        let (_, text) = written.split_once(part).expect("the file has this part");
        let part = text.split("\n# ").next().unwrap_or(text);
        part.matches("\n## ").count()
    };
    assert!(mistakes("# At the command line\n") >= 20);
    assert!(mistakes("# Over HTTP\n") >= 20);
}

/// A server, and a directory in which a user types commands.
struct Shell {
    encke: Encke,
    directory: TempDir,
}

impl Shell {
    fn start() -> Shell {
        let directory = TempDir::with_prefix("encke-mistakes-").expect("it can be written");
        let path = directory.path();
        std::fs::create_dir(path.join("bin")).expect("it is ours");
        symlink(env!("CARGO_BIN_EXE_encke"), path.join("bin/encke")).expect("it is ours");
        std::fs::write(path.join(".curlrc"), CURL_SETTINGS).expect("it is ours");
        let home = path.join("home");
        std::fs::create_dir(&home).expect("it is ours");
        Shell {
            encke: Encke::start_in(&home.join("encke-data"), &[]),
            directory,
        }
    }

    /// The same commands and comments, with what the commands print now.
    fn transcript(&self, written: &str) -> String {
        let mut transcript = String::new();
        for line in written.lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                let _ = write!(transcript, "{line}\n{}", self.run(command));
            } else if line.starts_with('#') {
                let _ = write!(transcript, "\n{line}\n\n");
            } else if line.starts_with("> ") {
                let _ = writeln!(transcript, "{line}");
            }
        }
        transcript.trim_start().replace("\n\n\n", "\n\n")
    }

    /// What a command prints, and its exit code unless that is 0. Lines are indented.
    fn run(&self, typed: &str) -> String {
        let path = self.directory.path();
        let typed = typed.replace(ADDRESS, &self.encke.address.to_string());
        let mut search_path = path.join("bin").into_os_string();
        search_path.push(":");
        search_path.push(std::env::var_os("PATH").expect("there are commands"));
        let mut shell = Command::new("timeout");
        without_settings(&mut shell);
        shell
            .args(["60", "bash", "-c", &typed])
            .current_dir(path.join("home"))
            .env("CURL_HOME", path)
            .env("PATH", search_path)
            .env_remove("COLUMNS")
            .env_remove("CLICOLOR_FORCE")
            // Lines of the log have times, and what a start says before it fails is no answer.
            .env("ENCKE_LOG", "error");
        let ended = Ended::of(&mut shell);
        let mut text = ended.stdout + &ended.stderr;
        if !text.ends_with('\n') && !text.is_empty() {
            text.push('\n');
        }
        if ended.code != Some(0) {
            let _ = writeln!(
                text,
                "exit code {}",
                ended.code.expect("no signal ended it")
            );
        }
        self.normal(&text)
    }

    /// Text without what differs from run to run: the address of the server, directories, the time that an import took.
    fn normal(&self, text: &str) -> String {
        let directory = self.directory.path().display().to_string();
        let text = text.replace(&self.encke.address.to_string(), ADDRESS);
        let text = text.replace(&directory, "");
        let mut normal = String::new();
        for line in text.lines() {
            let _ = match (line, line.rsplit_once(" B in ")) {
                ("", _) => writeln!(normal),
                (_, Some((imported, _))) => writeln!(normal, "    {imported} B in 0.0 s"),
                _ => writeln!(normal, "    {line}"),
            };
        }
        normal
    }
}

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/system/mistakes.txt"
);

/// The address of the server in commands and answers, which is the default one.
const ADDRESS: &str = "127.0.0.1:4437";

/// curl prints a response and its status.
const CURL_SETTINGS: &str =
    "silent\nshow-error\nmax-time = 60\nwrite-out = \"\\nHTTP %{http_code}\\n\"\n";
