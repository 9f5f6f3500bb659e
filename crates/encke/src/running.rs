//! A server that runs, with what it is asked by: the socket for upgrades, and reloads of its configuration.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};

use crate::asks::ServerAsk;
use crate::config::{Config, Given, SettingsArgs};
use crate::failure::{Code, Failed};
use crate::program_log::FilterHandle;
use crate::reload::{Reloads, RunningServer};
use crate::serving::{Outputs, Serving};
use crate::upgrade::{MovingIn, UpgradeSocket};

/// A server that runs.
pub(crate) struct Running {
    pub(crate) serving: Serving,
    pub(crate) reloads: Reloads,
    upgrades: Option<UpgradeSocket>,
}

/// Parameters of each start of a server in this process: the first one, and those after a failed upgrade.
pub(crate) struct StartContext<'a> {
    pub(crate) settings: &'a Arc<SettingsArgs>,
    pub(crate) config: &'a Config,
    pub(crate) given: &'a Given,
    pub(crate) filter: &'a FilterHandle,
    pub(crate) asks: &'a mpsc::Sender<ServerAsk>,
}

impl Running {
    /// Starts a server. With `moved` it listens where the process before does. It serves after [`Serving::admit`].
    ///
    /// # Errors
    /// Nothing is left of the attempt, but for threads that still end. A panic, such as that of a library to which the system refuses a
    /// thread, is an error, too: the connections that wait for the server outlive it.
    pub(crate) fn start(
        context: &StartContext<'_>,
        moved: Option<&mut MovingIn>,
    ) -> Result<Running, Failed> {
        let started = catch_unwind(AssertUnwindSafe(|| Self::try_start(context, moved)));
        started.unwrap_or_else(|_| {
            let error = anyhow::anyhow!("the start has panicked; the log says why");
            Err(Code::Running.with(error))
        })
    }

    fn try_start(
        context: &StartContext<'_>,
        moved: Option<&mut MovingIn>,
    ) -> Result<Running, Failed> {
        let config = context.config;
        let outputs = Outputs::open(config).map_err(|error| Code::Usage.with(error))?;
        let mut serving = Serving::start((config, context.given), &outputs, moved)?;
        // Before `encke upgrade` gets its answer, so that the next one finds the socket.
        let upgrades = UpgradeSocket::start(&config.data, context.asks.clone(), ServerAsk::Upgrade);
        let upgrades = upgrades.inspect_err(|error| {
            tracing::warn!(%error, data = %config.data.display(), "the server can't be asked to upgrade");
        });
        let upgrades = upgrades.ok();
        let reloads = serving.write_logs(outputs).and_then(|()| {
            let server = RunningServer {
                settings: Arc::clone(context.settings),
                config: config.clone(),
                access: serving.access.clone(),
                router: serving.router.clone(),
                address_limiter: serving.server.address_limiter(),
                filter: Arc::clone(context.filter),
                metrics: serving.reload_metrics.clone(),
                configuration: Arc::clone(&serving.configuration),
            };
            Ok(Reloads::start(server)?)
        });
        match reloads {
            Ok(reloads) => Ok(Running {
                serving,
                reloads,
                upgrades,
            }),
            Err(failed) => {
                if let Some(upgrades) = upgrades {
                    upgrades.stop();
                }
                serving.abandon();
                Err(failed)
            }
        }
    }

    /// Ends a server that has not begun to serve.
    pub(crate) fn abandon(self) {
        let (serving, _) = self.end_asking();
        serving.abandon();
    }

    /// Ends the socket for upgrades and the reloads. Returns the configuration in force.
    pub(crate) fn end_asking(self) -> (Serving, Config) {
        if let Some(upgrades) = self.upgrades {
            upgrades.stop();
        }
        (self.serving, self.reloads.stop())
    }
}
