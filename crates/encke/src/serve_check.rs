//! `encke serve --check`: the effective configuration, and what would keep the server from starting.

use std::process::ExitCode;
use std::sync::Arc;

use encke_protocol::Policy;

use crate::config::{Config, Given, SettingsArgs, effective};
use crate::failure::{Code, Failed};
use crate::obstacles::{self, Obstacle};
use crate::standard_output::print;
use crate::zone::InUrl;
use crate::{descriptors, exposure};

/// The settings, and the limit on open files, which bounds the connections.
pub(crate) fn resolve(settings: &SettingsArgs) -> Result<(Config, Given, u64), Failed> {
    let (mut config, given) = settings
        .resolve()
        .map_err(|error| Code::Usage.with(error))?;
    let files = descriptors::bound(&mut config);
    Ok((config, given, files))
}

/// Prints what `--check` is for, and exits as a start would.
pub(crate) fn print_check(settings: &SettingsArgs) -> Result<ExitCode, Failed> {
    let (config, given, files) = resolve(settings)?;
    let obstacles = obstacles::all(&config);
    print(&check(&config, &given, (files, &obstacles)))?;
    let code = obstacles.first().map(|first| first.code.into());
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

/// The output of `--check`: the effective configuration, below comments on this machine and the data directory.
fn check(config: &Config, given: &Given, (files, obstacles): (u64, &[Obstacle])) -> String {
    let data = match std::fs::read_dir(&config.data).map(Iterator::count) {
        Ok(0) => "exists, empty",
        Ok(_) => "exists",
        Err(_) => "does not exist, will be created",
    };
    let access = access(config);
    let operators = match config.net.operators_listen {
        Some(address) => format!("http://{}, without credentials", InUrl(address)),
        None => "the address of clients".to_owned(),
    };
    let mut text = String::from(
        "# The effective configuration of encke serve, with the origin of each value.\n",
    );
    let warnings = config.net.tls.as_ref().map(encke_net::check_tls);
    for warning in warnings.and_then(Result::ok).unwrap_or_default() {
        let file = warning.path.display();
        text.push_str(&format!("# warning: {file}: {}\n", warning.why));
    }
    for warning in exposure::warnings(config) {
        text.push_str(&format!("# warning: {warning}\n"));
    }
    for obstacle in obstacles {
        text.push_str(&format!(
            "# The server would not start: {}\n",
            obstacle.text
        ));
    }
    for (what, state) in [
        ("data directory", data),
        ("access", &access),
        ("operators", &operators),
        (
            "open files",
            &format!(
                "{files} at most, {} of them for connections",
                descriptors::connections(files)
            ),
        ),
    ] {
        text.push_str(&format!("# {what}: {state}\n"));
    }
    if let Some(lowered) = &config.lowered_defaults {
        text.push_str(&format!(
            "# memory: {} at most (control group), which lowers the defaults of {}\n",
            bytesize::ByteSize(lowered.memory_max),
            lowered.settings.join(", ")
        ));
    }
    text + &effective(config, given)
}

/// Who may do what: asks the gate of the server.
fn access(config: &Config) -> String {
    let table = config.access.as_ref();
    let reach = match config.net.listen.ip().is_loopback() {
        true => "this machine only",
        false => "every machine that reaches the address",
    };
    // The table was read before.
    let access = table.and_then(|table| table.access().ok()).map(Arc::new);
    match (config.gate(access).access, table) {
        (Policy::Controlled(_), Some(table)) => {
            format!("{reach}, as the table [access] says: {}", table.summary())
        }
        (Policy::Local, _) => reach.to_owned(),
        (Policy::Open | Policy::Controlled(_), _) => {
            format!("{reach}; there is no access control")
        }
    }
}
