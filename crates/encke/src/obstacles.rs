//! What keeps a server from starting, found without changing anything: for `encke serve --check` and `encke doctor`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::failure::Code;

/// One thing that keeps a server from starting.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// The exit code of the server.
    pub(crate) code: Code,
    /// What it is, on one line.
    pub(crate) text: String,
}

/// The obstacle on an address to listen on.
pub(crate) fn of_address(address: SocketAddr) -> Option<Obstacle> {
    let error = encke_net::check_address(address).err()?;
    Some(Obstacle {
        code: Code::Listen,
        text: cannot_listen(address, error),
    })
}

/// The obstacle in the files of TLS.
pub(crate) fn of_tls(settings: &encke_net::TlsSettings) -> Option<Obstacle> {
    let error = encke_net::check_tls(settings).err()?;
    Some(Obstacle {
        code: Code::Usage,
        text: error.to_string().replace(['\n', '\r'], " "),
    })
}

/// That an address can't be listened on, and what to do.
pub(crate) fn cannot_listen(address: SocketAddr, error: Errno) -> String {
    let advice = match error {
        Errno::ADDRINUSE => {
            ": choose another port, such as --listen 5238, or stop the process that listens there"
        }
        Errno::ADDRNOTAVAIL => ": give an address of this machine",
        Errno::ACCESS => ": choose a port above 1023, such as --listen 5238",
        _ => "",
    };
    format!("can't listen on {address}: {error}{advice}")
}

/// The obstacle if the path of the data, or what exists of it, is no directory.
pub(crate) fn of_path(data: &Path) -> Option<Obstacle> {
    let found = |path: &Path| Some((path.to_owned(), std::fs::metadata(path).ok()?));
    let (path, metadata) = data.ancestors().find_map(found)?;
    let text = match path == data {
        true => format!("--data {} is not a directory", data.display()),
        false => format!(
            "--data {} can't be created: {} is not a directory",
            data.display(),
            path.display()
        ),
    };
    (!metadata.is_dir()).then_some(Obstacle {
        code: Code::Data,
        text,
    })
}

/// The obstacle in a data directory that is to hold `logs` logs; as many as it holds if that is `None`.
pub(crate) fn of_data(data: &Path, logs: Option<usize>) -> Option<Obstacle> {
    let obstacle = |text: String| {
        Some(Obstacle {
            code: Code::Data,
            // An error may have several lines.
            text: text.replace(['\n', '\r'], " "),
        })
    };
    if let Some(obstacle) = of_path(data) {
        return Some(obstacle);
    }
    let there = match logs_there(data) {
        Err(error) => return obstacle(error.to_string()),
        Ok(there) => there,
    };
    if let (false, Some(logs)) = (there.is_empty(), logs)
        && there.len() != logs
    {
        return obstacle(format!(
            "the number of logs can't be changed to {logs}: {} holds {}",
            data.display(),
            in_words(there.len())
        ));
    }
    let mut in_use = there.iter().map(|log| encke_log::Files::check_free(log));
    in_use
        .find_map(Result::err)
        .and_then(|error| obstacle(error.to_string()))
}

/// The directories of the logs that a data directory holds.
pub(crate) fn logs_there(data: &Path) -> Result<Vec<PathBuf>, encke_log::LayoutError> {
    let there = encke_log::logs_in(data)?;
    let holds = there.len() > 1 || encke_log::Files::holds_log(data).unwrap_or(false);
    Ok(if holds { there } else { Vec::new() })
}

/// A number of logs.
pub(crate) fn in_words(logs: usize) -> String {
    match logs {
        1 => "one log".to_owned(),
        logs => format!("{logs} logs"),
    }
}
