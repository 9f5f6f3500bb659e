//! `encke health`: whether a server is ready, for machines and containers without an HTTP client.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use encke_client::{ClientRules, client};

use crate::failure::{Code, Failed};
use crate::standard_output::print;

/// The arguments of `encke health`.
#[derive(Args, Debug)]
pub(crate) struct HealthArgs {
    /// The server, by its address for clients or for operators
    #[arg(default_value = "http://127.0.0.1:4437")]
    url: String,
}

/// Asks the server, and prints what it says.
pub(crate) fn health(args: &HealthArgs) -> Result<ExitCode, Failed> {
    let config = ClientRules::default().config();
    let agent = client(config.timeout_global(Some(PATIENCE)).build());
    let url = format!("{}/readyz", args.url.trim_end_matches('/'));
    let failed = |error: &dyn std::fmt::Display| {
        Code::Running.with(anyhow::anyhow!("{url} does not respond: {error}"))
    };
    let mut response = agent.get(&url).call().map_err(|error| failed(&error))?;
    let text = response.body_mut().read_to_string();
    let text = text.map_err(|error| failed(&error))?;
    if !response.status().is_success() {
        let text = text.trim();
        return Err(Code::Running.with(anyhow::anyhow!("the server is not ready: {text}")));
    }
    print("ready\n")?;
    Ok(ExitCode::SUCCESS)
}

/// How long the server may take.
const PATIENCE: Duration = Duration::from_secs(4);
