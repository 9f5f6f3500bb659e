//! What `encke --version` says of the build: the commit and the date. The date is that of `SOURCE_DATE_EPOCH` if it is set, so that a
//! build can be repeated to the byte; without a repository, as in a published crate, there is no commit.

use std::process::Command;

use jiff::Timestamp;

fn main() {
    println!("cargo::rerun-if-env-changed=BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let given = std::env::var("BUILD_COMMIT").ok();
    let commit = given.or_else(|| git(&["rev-parse", "--short=12", "HEAD"]));
    let version = env!("CARGO_PKG_VERSION");
    let build = [commit, Some(date())].into_iter().flatten();
    let build: Vec<String> = build.collect();
    println!(
        "cargo::rustc-env=BUILD_OF_ENCKE={version} ({})",
        build.join(" ")
    );
}

/// What a command of git prints; none if there is neither git nor a repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}

/// The day of the build, such as `2026-11-26`.
fn date() -> String {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let given = given.and_then(|text| text.parse().ok());
    let given = given.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = given.unwrap_or_else(Timestamp::now);
    time.strftime("%Y-%m-%d").to_string()
}
