//! Files with secrets that other users of the machine can read. The server warns and starts: who may read them is the operator's to
//! decide, and a group can be one.
//!
//! What the server makes itself is for its own user only: `main` sets the mask for that.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::config::Config;

/// A warning for each file with secrets, and for the data directory, that all users of the machine can read or change.
pub(crate) fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let access = config.access.iter().flat_map(|table| table.secret_files());
    let pusher = config.pusher.iter().flat_map(|table| table.secret_files());
    let fleet = config.fleet.credentials.clone();
    let fleet = fleet.map(|path| ("fleet-credentials".to_owned(), path));
    let traces = config.traces.headers.clone();
    let traces = traces.map(|path| ("traces-headers".to_owned(), path));
    for (what, path) in access.chain(pusher).chain(fleet).chain(traces) {
        if is_exposed(&path) {
            let path = path.display();
            warnings.push(format!(
                "{what}: {path} holds a secret, and all users of this machine can read or change it: chmod o= {path}"
            ));
        }
    }
    if is_exposed(&config.data) {
        let path = config.data.display();
        warnings.push(format!(
            "data: all users of this machine can read the records in {path}: chmod -R o= {path}"
        ));
    }
    warnings
}

/// Whether others than the owner and the group of a file have any right to it. What does not exist is not exposed.
fn is_exposed(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & OTHERS != 0)
}

/// The rights of others.
const OTHERS: u32 = 0o007;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_all_users_can_read_or_change_is_exposed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        assert!(!is_exposed(&path));
        std::fs::write(&path, "x").unwrap();
        for (mode, exposed) in [
            (0o600, false),
            (0o640, false),
            (0o660, false),
            (0o644, true),
            (0o602, true),
        ] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, permissions).unwrap();
            assert_eq!(is_exposed(&path), exposed, "{mode:o}");
        }
    }
}
