//! Sets the build that `encke --version` prints: the commit and the date. With `SOURCE_DATE_EPOCH` the date is that one, so that
//! builds are reproducible. A build outside a repository, such as that of a published crate, has no commit.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let given = std::env::var("BUILD_COMMIT").ok();
    let commit = given.or_else(|| output("git", &["rev-parse", "--short=12", "HEAD"]));
    let version = env!("CARGO_PKG_VERSION");
    let build = [commit, date()].into_iter().flatten();
    let build: Vec<String> = build.collect();
    println!(
        "cargo::rustc-env=BUILD_OF_ENCKE={version} ({})",
        build.join(" ")
    );
}

/// The day of the build in UTC, such as `2026-11-26`.
fn date() -> Option<String> {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let seconds = given.and_then(|text| text.parse::<u64>().ok());
    match seconds {
        Some(seconds) => output("date", &["-u", "-d", &format!("@{seconds}"), "+%Y-%m-%d"]),
        None => output("date", &["-u", "+%Y-%m-%d"]),
    }
}

/// The output of a command; `None` if it is missing or fails.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
