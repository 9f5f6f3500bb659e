//! How the commands of `encke fleet` reach the brokers.

use std::convert::Infallible;
use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;

use clap::Args;
use encke_fleet::{BadBrokers, BrokerAccess, BrokerUrls, FleetError, FleetName};

use crate::failure::{Code, Failed};
use crate::shell_words::quoted;

/// How the brokers are reached.
#[derive(Args, Debug)]
pub(crate) struct BrokerArgs {
    /// The brokers of the fleet, such as nats://10.0.0.1:4222,nats://10.0.0.2:4222
    #[arg(long, value_name = "URLS", env = "ENCKE_FLEET", hide_env_values = true, value_parser = brokers)]
    fleet: GivenBrokers,

    /// The name of the fleet
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) fleet_name: FleetName,

    /// File of the credentials for the brokers
    #[arg(long, value_name = "FILE")]
    fleet_credentials: Option<PathBuf>,

    /// Certificate authority of the brokers in PEM format
    #[arg(long, value_name = "FILE")]
    fleet_ca: Option<PathBuf>,
}

/// The brokers as they were given. A message of the command line's parser would show a wrong value with its password.
type GivenBrokers = Result<BrokerUrls, BadBrokers>;

fn brokers(text: &str) -> Result<GivenBrokers, Infallible> {
    Ok(text.parse())
}

impl BrokerArgs {
    pub(crate) fn access(&self) -> Result<BrokerAccess, Failed> {
        let brokers = self.fleet.clone();
        let brokers = brokers.map_err(|error| Code::Usage.with(error))?;
        Ok(BrokerAccess {
            brokers,
            credentials: self.fleet_credentials.clone(),
            ca: self.fleet_ca.clone(),
        })
    }
}

/// The flags with which a node of the same fleet is started, beside its own.
impl Display for BrokerArgs {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Ok(brokers) = &self.fleet {
            write!(f, "--fleet {}", quoted(brokers.to_string()))?;
        }
        if self.fleet_name != FleetName::default() {
            write!(f, " --tuning fleet-name={}", self.fleet_name)?;
        }
        let files = [
            ("fleet-credentials", &self.fleet_credentials),
            ("fleet-ca", &self.fleet_ca),
        ];
        for (key, file) in files {
            if let Some(file) = file {
                write!(
                    f,
                    " --tuning {}",
                    quoted(format!("{key}={}", file.display()))
                )?;
            }
        }
        Ok(())
    }
}

/// The failure of a command that has asked the brokers.
pub(crate) fn failed(error: FleetError) -> Failed {
    let code = match error {
        FleetError::Credentials { .. } => Code::Usage,
        _ => Code::Running,
    };
    code.with(error)
}
