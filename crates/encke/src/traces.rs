//! Traces: what is traced, where spans go, and the thread that sends them there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use encke_client::ClientRules;
use encke_trace::{CollectorSettings, SpanExporter, Tracer, TracerSettings};
use ureq::http::{HeaderName, HeaderValue};

/// The settings of traces.
#[derive(Clone, Debug)]
pub(crate) struct TraceConfig {
    /// The collector that takes spans; nothing is traced without one.
    pub(crate) url: Option<String>,
    /// The share of requests that are traced.
    pub(crate) ratio: f64,
    /// A file with header fields for the collector.
    pub(crate) headers: Option<PathBuf>,
    /// Spans that wait for the collector.
    pub(crate) spans_max: usize,
    /// The name of the server among other programs.
    pub(crate) service: String,
}

impl Default for TraceConfig {
    fn default() -> Self {
        TraceConfig {
            url: None,
            ratio: 0.01,
            headers: None,
            spans_max: 8_192,
            service: "encke".to_owned(),
        }
    }
}

impl TraceConfig {
    /// Checks what `--check` checks, too.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.headers.is_none() || self.url.is_some(),
            "tuning.traces-headers needs --traces, the collector that gets them"
        );
        self.read_headers().map(drop)
    }

    /// Starts the thread. `None`: nothing is traced.
    pub(crate) fn start(
        &self,
        client: &ClientRules,
    ) -> anyhow::Result<Option<(Tracer, SpanExporter)>> {
        let Some(url) = &self.url else {
            return Ok(None);
        };
        let (tracer, queue) = Tracer::new(TracerSettings {
            ratio: self.ratio,
            spans_max: self.spans_max,
        });
        let collector = CollectorSettings {
            url: url.clone(),
            headers: self.read_headers()?,
            client: client.clone(),
            service: self.service.clone(),
        };
        let exporter = SpanExporter::start(queue, collector)
            .context("the thread that exports traces can't be started")?;
        Ok(Some((tracer, exporter)))
    }

    fn read_headers(&self) -> anyhow::Result<Vec<(String, String)>> {
        let Some(path) = &self.headers else {
            return Ok(Vec::new());
        };
        let text = encke_files::read_text(path)
            .with_context(|| format!("tuning.traces-headers {} can't be read", path.display()))?;
        parse_headers(&text, path)
    }
}

/// Reads a header field from each line that is not empty. Errors name the line and not what it holds, which may be a secret.
fn parse_headers(text: &str, path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.is_empty());
    let field = |(number, line): (usize, &str)| {
        let field = line
            .split_once(':')
            .map(|(name, value)| (name, value.trim()));
        let field = field.filter(|(name, value)| {
            HeaderName::try_from(*name).is_ok() && HeaderValue::try_from(*value).is_ok()
        });
        let (name, value) = field.with_context(|| {
            let path = path.display();
            format!("tuning.traces-headers {path}, line {number}: must be a header field such as `Authorization: Bearer TOKEN`")
        })?;
        Ok((name.to_owned(), value.to_owned()))
    };
    lines.map(field).collect()
}

/// How long a stop waits for the collector to take the last spans.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);

/// Sends the last spans.
pub(crate) fn stop(exporter: Option<SpanExporter>) {
    if let Some(exporter) = exporter
        && !exporter.stop(FLUSH_WITHIN)
    {
        tracing::error!("the thread that exports traces panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_are_read_and_mistakes_name_no_secret() {
        let path = Path::new("headers");
        let read = parse_headers("Authorization: Bearer a:b\n\n x-team:  push \n", path).unwrap();
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            read,
            [
                field("Authorization", "Bearer a:b"),
                field("x-team", "push")
            ]
        );
        for wrong in ["secret", "a b: secret", ": secret", "x: secret\u{1}"] {
            let error = parse_headers(&format!("x: y\n{wrong}"), path)
                .unwrap_err()
                .to_string();
            assert!(error.contains("headers, line 2"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
