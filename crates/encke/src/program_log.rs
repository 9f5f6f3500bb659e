//! The log of the program on standard error: its format and its filter, which a reload of the configuration replaces. Its lines go through
//! the queue of `stderr_queue`.

use std::io::IsTerminal;
use std::sync::Arc;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};
use crate::{log_filter, stderr_queue};

/// Replaces the filter of the log.
pub(crate) type FilterHandle = Arc<dyn Fn(EnvFilter) -> anyhow::Result<()> + Send + Sync>;

/// The filter that a configuration asks for.
pub(crate) fn filter(config: &Config) -> anyhow::Result<EnvFilter> {
    EnvFilter::try_new(log_filter::without_internals(&config.log))
        .with_context(|| format!("--log {:?} is no filter", config.log))
}

/// Starts to write the log.
pub(crate) fn start(config: &Config) -> anyhow::Result<FilterHandle> {
    let filter = filter(config)?;
    let queue = stderr_queue::start()?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        // It would say on standard error that standard error can't be written to, and panic.
        .log_internal_errors(false)
        .with_writer(move || queue);
    Ok(match config.log_format {
        LogFormat::Human => {
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Arc::new(move |filter| Ok(handle.reload(filter)?))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            builder.init();
            Arc::new(move |filter| Ok(handle.reload(filter)?))
        }
    })
}
