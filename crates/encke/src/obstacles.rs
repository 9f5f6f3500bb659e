//! What keeps a server from starting, found without leaving anything behind: for `encke serve --check` and `encke doctor`.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::Path;

use bytesize::ByteSize;
use rustix::io::Errno;
use rustix::process::Resource;

use crate::config::{Config, free_example};
use crate::failure::Code;
use crate::log_locations::{self, Ahead, LogLocation, logs_there};
use crate::resource_limits;
use crate::zone::NamedZone;

/// One thing that keeps a server from starting.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// The exit code of the server.
    pub(crate) code: Code,
    /// What it is, on one line.
    pub(crate) text: String,
}

/// Everything that keeps a server with these settings from starting.
pub(crate) fn all(config: &Config) -> Vec<Obstacle> {
    let mut obstacles: Vec<Obstacle> = of_data(&config.data, config.logs).into_iter().collect();
    if obstacles.is_empty() {
        let logs = log_locations::examine(&config.data, config.logs, Ahead::of(config));
        let refused = logs.iter().find_map(LogLocation::refusal);
        obstacles.extend(refused.map(in_data));
    }
    obstacles.extend(of_file_size(config));
    obstacles.extend(of_log_files(config).into_iter().filter_map(|(_, one)| one));
    obstacles.extend(config.net.tls.as_ref().and_then(of_tls));
    obstacles.extend(of_addresses(config).into_iter().filter_map(|(_, one)| one));
    obstacles
}

/// The obstacle if this process may not make files as large as a segment.
pub(crate) fn of_file_size(config: &Config) -> Option<Obstacle> {
    let limit = resource_limits::limit(Resource::Fsize)?.current?;
    let segment_bytes = config.log_options.segment_bytes;
    (limit < segment_bytes).then(|| {
        in_data(format!(
            "a file may have {}, and a segment has {}: raise the limit on the size of files (`ulimit -f`, LimitFSIZE= of systemd), or choose a \
             smaller --segment",
            ByteSize(limit),
            ByteSize(segment_bytes)
        ))
    })
}

/// The addresses to listen on, each with its obstacle.
pub(crate) fn of_addresses(config: &Config) -> Vec<(SocketAddr, Option<Obstacle>)> {
    let addresses = config.addresses().into_iter();
    let examined = addresses.map(|(_, address)| {
        let error = encke_net::check_address(address).err();
        let obstacle = error.map(|error| Obstacle {
            code: Code::Listen,
            text: cannot_listen(config, address, error),
        });
        (address, obstacle)
    });
    examined.collect()
}

/// The obstacle in the files of TLS.
pub(crate) fn of_tls(settings: &encke_net::TlsSettings) -> Option<Obstacle> {
    let error = encke_net::check_tls(settings).err()?;
    Some(Obstacle {
        code: Code::Usage,
        text: error.to_string().replace(['\n', '\r'], " "),
    })
}

/// That an address of these settings can't be listened on, and what to do.
pub(crate) fn cannot_listen(config: &Config, address: SocketAddr, error: Errno) -> String {
    let addresses = config.addresses();
    let named = addresses.iter().find(|(_, one)| *one == address);
    let flag = named.map_or("--listen", |(flag, _)| flag);
    let example = free_example(flag);
    let advice = match error {
        Errno::ADDRINUSE => format!(
            ": choose another port, such as {flag} {example}, or stop the process that listens there"
        ),
        Errno::ADDRNOTAVAIL => format!(": give {flag} an address of this machine"),
        Errno::ACCESS => format!(": choose a port above 1023, such as {flag} {example}"),
        _ => String::new(),
    };
    format!("can't listen on {}: {error}{advice}", NamedZone(address))
}

/// The obstacle if the path of the data, or what exists of it, is no directory, or if the current directory is gone: history
/// asks for it even where all paths are absolute.
pub(crate) fn of_path(data: &Path) -> Option<Obstacle> {
    if let Err(error) = std::env::current_dir() {
        return Some(Obstacle {
            code: Code::Data,
            text: format!(
                "the current directory can't be used: {error}: start encke in a directory that exists"
            ),
        });
    }
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

/// The obstacle in a data directory that is to hold this number of logs.
pub(crate) fn of_data(data: &Path, logs: usize) -> Option<Obstacle> {
    let obstacle = |text| Some(in_data(text));
    if let Some(obstacle) = of_path(data) {
        return Some(obstacle);
    }
    let there = match logs_there(data) {
        Err(error) => return obstacle(error.to_string()),
        Ok(there) => there,
    };
    if !there.is_empty() && there.len() != logs {
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

/// An obstacle in the data directory.
fn in_data(text: String) -> Obstacle {
    Obstacle {
        code: Code::Data,
        // An error may have several lines.
        text: text.replace(['\n', '\r'], " "),
    }
}

/// The files of the access log and of the audit log, each with its name and its obstacle. A file that does not exist is not created.
pub(crate) fn of_log_files(config: &Config) -> Vec<(String, Option<Obstacle>)> {
    let files = [
        ("access log", &config.access_log_file),
        ("audit log", &config.audit_log_file),
    ];
    let given = files
        .into_iter()
        .filter_map(|(name, path)| Some((name, path.as_ref()?)));
    let examined = given.map(|(name, path)| {
        let obstacle = try_append(path).err().map(|error| Obstacle {
            code: Code::Usage,
            text: format!("the {name} {} can't be opened: {error}", path.display()),
        });
        (format!("{name}, {}", path.display()), obstacle)
    });
    examined.collect()
}

/// Whether a file can be appended to, or made.
fn try_append(path: &Path) -> std::io::Result<()> {
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty());
            log_locations::try_write(folder.unwrap_or(Path::new(".")))
        }
        _ => encke_files::open_to_append(path).map(drop),
    }
}

/// A number of logs.
pub(crate) fn in_words(logs: usize) -> String {
    match logs {
        1 => "one log".to_owned(),
        logs => format!("{logs} logs"),
    }
}
