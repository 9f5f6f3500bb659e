//! How commands make requests.

use clap::Args;
use encke_client::{ClientRules, HttpProxy};

/// The arguments of commands that make requests.
#[derive(Args, Debug)]
pub(crate) struct ClientArgs {
    #[arg(
        long,
        value_name = "URL",
        help = "HTTP proxy, such as http://proxy.example:3128; servers on loopback are reached directly"
    )]
    http_proxy: Option<HttpProxy>,
}

impl ClientArgs {
    pub(crate) fn rules(&self) -> ClientRules {
        ClientRules {
            proxy: self.http_proxy.clone(),
            ..ClientRules::default()
        }
    }
}
