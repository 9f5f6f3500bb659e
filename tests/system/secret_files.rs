//! Files that only the server's own user can read, and warnings about secrets that all users can read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::rig::{Encke, Ended, can_use, command, data_dir, serve};

/// Everything at and below a path that others than its owner have a right to.
fn shared(path: &Path, found: &mut Vec<String>) {
    let metadata = std::fs::symlink_metadata(path).expect("it is there");
    let mode = metadata.permissions().mode();
    if mode & 0o077 != 0 {
        found.push(format!("{} {mode:o}", path.display()));
    }
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).expect("it can be read") {
            shared(&entry.expect("it can be read").path(), found);
        }
    }
}

fn set_mode(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("it is this user's");
}

#[test]
fn what_the_server_makes_is_for_its_own_user_only() {
    let folder = data_dir();
    let data = folder.path().join("data");
    let log = |name: &str| folder.path().join(name);
    let access_log = format!("access-log-file={}", log("access.log").display());
    let audit_log = format!("audit-log-file={}", log("audit.log").display());
    let tuning = ["--tuning", &access_log, "--tuning", &audit_log];
    let flags = [&["--access-log", "json", "--logs", "2"][..], &tuning].concat();
    let encke = Encke::start_by(&mut serve(&data, &flags));
    for number in 0..20 {
        encke.create(&format!("s{number}"));
    }
    let pool = encke.ask("PUT", "/v1/pool/p", &[], br#"{"type":"claim"}"#);
    assert_eq!(pool.status, 201);
    assert_eq!(encke.terminate().code, Some(0));
    let mut found = Vec::new();
    for path in [&data, &log("access.log"), &log("audit.log")] {
        shared(path, &mut found);
    }
    assert_eq!(found, [""; 0]);
    // What is there already keeps its rights, and is warned about.
    set_mode(&data, 0o755);
    let encke = Encke::start_by(&mut serve(&data, &flags));
    let warning = "all users of this machine can read the records in";
    assert!(encke.log().contains(warning), "{}", encke.log());
}

#[test]
fn secrets_that_all_users_can_read_are_warned_about() {
    let folder = data_dir();
    let secret = folder.path().join("links.secret");
    let config = folder.path().join("encke.toml");
    std::fs::write(&secret, "a secret of more than thirty-two bytes").expect("it is written");
    let entry = "[[access.signing-keys]]\nkid = 'links'\nsecret-file = 'links.secret'\n";
    std::fs::write(&config, entry).expect("it is written");
    let check = || {
        let path = config.to_str().expect("the path is text");
        Ended::of(&mut command(&["serve", "--check", "--config", path])).stdout
    };
    let warning = "access.signing-keys[0].secret-file: ";
    for (mode, warns) in [(0o600, false), (0o640, false), (0o644, true)] {
        set_mode(&secret, mode);
        assert_eq!(check().contains(warning), warns, "{mode:o}: {}", check());
    }
}

#[test]
fn a_service_that_may_not_read_its_configuration_names_the_remedy() {
    let works = || Command::new("setpriv").arg("--version").output().is_ok();
    if !can_use("setpriv", works) {
        return;
    }
    let folder = data_dir();
    let config = folder.path().join("encke.toml");
    let secret = folder.path().join("links.secret");
    std::fs::write(&secret, "a secret of more than thirty-two bytes").expect("it is written");
    let entry = "[[access.signing-keys]]\nkid = 'links'\nsecret-file = 'links.secret'\n";
    std::fs::write(&config, entry).expect("it is written");
    for unreadable in [&secret, &config] {
        set_mode(unreadable, 0o000);
        let serve = serve(&folder.path().join("data"), &["--config"]);
        // Root reads everything unless it has lost this right.
        let mut command = Command::new("setpriv");
        command.args([
            "--bounding-set",
            "-dac_override,-dac_read_search",
            "--inh-caps=-all",
        ]);
        command.arg(serve.get_program()).args(serve.get_args());
        let service = [("INVOCATION_ID", "1")];
        let ended = Ended::of(command.arg(&config).envs(service));
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("Permission denied"), "{ended:?}");
        assert!(ended.stderr.contains("LoadCredential="), "{ended:?}");
    }
}

#[test]
fn a_mistake_in_the_configuration_does_not_show_a_secret() {
    let folder = data_dir();
    let config = folder.path().join("encke.toml");
    for mistake in [
        "secret = \"correct-horse",
        "secret = 'a' correct-horse",
        "secret = ['correct-horse']",
        "secret = correct-horse",
    ] {
        let entry = format!("[[access.signing-keys]]\nkid = 'links'\n{mistake}\n");
        std::fs::write(&config, entry).expect("it is written");
        let path = config.to_str().expect("the path is text");
        for line in [
            &["serve", "--config", path][..],
            &["sign", "--config", path, "/v1/stream/a"],
        ] {
            let ended = Ended::of(&mut command(line));
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert!(!format!("{ended:?}").contains("horse"), "{ended:?}");
        }
    }
}
