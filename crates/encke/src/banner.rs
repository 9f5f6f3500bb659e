//! What a server prints on standard output when it has started: where it listens, and what to try.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use encke_server::Server;

use crate::config::{AccessTable, Config};
use crate::shell_words::quoted;
use crate::stderr_queue;
use crate::zone::InUrl;

/// Says where the server listens and what to try; the first line is for scripts. What follows the addresses would disturb programs
/// that read an access log.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn announce(server: &Server, config: &Config) -> std::io::Result<()> {
    let scheme = match config.net.tls {
        Some(_) => "https",
        None => "http",
    };
    let url = format!("{scheme}://{}", InUrl(server.address()));
    let mut text = format!("listening on {url}\n");
    let operators = server.operators_address().map(InUrl);
    if let Some(operators) = &operators {
        text += &format!("for operators on http://{operators}\n");
    }
    if config.net.access_log.is_none() || config.access_log_file.is_some() {
        text += &advice(&url, operators.as_ref(), config);
    }
    // A program that has read the first line finds what was logged before.
    stderr_queue::flush();
    print(text)
}

/// Prints in a thread of its own: the reader of standard output may be hung, and the server serves nevertheless.
fn print(text: String) -> std::io::Result<()> {
    let (printing, printed) = mpsc::channel::<()>();
    let thread = std::thread::Builder::new().name("banner".to_owned());
    thread.spawn(move || {
        let mut out = std::io::stdout().lock();
        // Standard output may be closed.
        let _ = out.write_all(text.as_bytes());
        let _ = out.flush();
        drop(printing);
    })?;
    if printed.recv_timeout(PRINT_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
        tracing::warn!("standard output is blocked; it has not taken the addresses of the server");
    }
    Ok(())
}

/// Commands to try, which work against this server as it is configured, and addresses.
fn advice(url: &str, operators: Option<&InUrl>, config: &Config) -> String {
    let (credentials, field) = match &config.access {
        None => (String::new(), ""),
        Some(table) => (token(table), " -H \"Authorization: Bearer $token\""),
    };
    let json = "-H 'Content-Type: application/json'";
    let stream = format!("{url}/v1/stream/{STREAM}");
    let metrics = match (operators, &config.access) {
        (Some(operators), _) => format!(", metrics http://{operators}/metrics"),
        (None, Some(_)) => {
            format!(", metrics {url}/metrics for callers with the action admin")
        }
        // Then every caller is a client.
        (None, None) if config.open => String::new(),
        (None, None) => format!(", metrics {url}/metrics"),
    };
    format!(
        "\n\
         Try it:\n\
         \n\
         {credentials}\
         \x20 curl -X PUT {stream}{field} {json}\n\
         \x20 curl -N '{stream}?offset=-1&live=sse'{field} &\n\
         \x20 curl {stream}{field} {json} -d '{{\"text\":\"Hello, world\"}}'\n\
         \n\
         Health {url}/readyz{metrics}. Data in {}. Stop with Ctrl-C.\n",
        config.data.display(),
    )
}

/// The line that sets `$token`: by a command, if an issuer can sign tokens that allow what the other lines do.
fn token(table: &AccessTable) -> String {
    let issuers = || table.signers().map(|(_, issuer)| issuer);
    // Bounds may leave out the stream.
    let Some(issuer) = issuers().find(|issuer| issuer.grants.is_none()) else {
        return "  token=TOKEN_OR_API_KEY\n".to_owned();
    };
    let mut command = format!("encke token --config {}", quoted(table.path()));
    if issuers().count() > 1 {
        command += &format!(" --issuer {}", quoted(issuer.shown_name()));
    }
    if let Some(lifetime) = issuer.lifetime_max.filter(|most| *most < TOKEN_LIFETIME) {
        command += &format!(" --expires {}s", lifetime.as_secs().max(1));
    }
    format!("  token=$({command} --allow 'create,append,read=/v1/stream/{STREAM}')\n")
}

/// The stream of the README.
const STREAM: &str = "hello";

/// How long a start waits for a standard output that blocks.
const PRINT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a token of `encke token` is valid unless it says otherwise.
const TOKEN_LIFETIME: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SECRET: &str = "secret = '0123456789abcdef0123456789abcdef'\n";

    fn line(text: &str) -> String {
        let path = Path::new("/etc/my encke/encke.toml");
        let table = AccessTable::parse(text.parse().unwrap(), path).unwrap();
        token(&table)
    }

    fn issuer(name: &str, more: &str) -> String {
        format!(
            "[[issuers]]\nname = '{name}'\nissuer = 'https://{name}.example'\naudience = 'encke'\nalgorithms = ['HS256']\n{more}"
        )
    }

    #[test]
    fn a_token_is_made_by_an_issuer_that_can_sign() {
        let config = "encke token --config '/etc/my encke/encke.toml'";
        let allow = "--allow 'create,append,read=/v1/stream/hello')";
        let bounded = format!("{SECRET}grants = [{{ actions = ['read'], paths = ['/a'] }}]\n");
        let short = format!("{SECRET}lifetime-max = '5m'\n");
        let unable = "jwks-url = 'https://issuer.example/keys'\n";
        for (text, expected) in [
            (issuer("a", SECRET), format!("  token=$({config} {allow}\n")),
            (
                issuer("a", unable) + &issuer("b", SECRET),
                format!("  token=$({config} {allow}\n"),
            ),
            (
                issuer("a", &bounded) + &issuer("b", SECRET),
                format!("  token=$({config} --issuer b {allow}\n"),
            ),
            (
                issuer("a", &short),
                format!("  token=$({config} --expires 300s {allow}\n"),
            ),
            (issuer("a", unable), "  token=TOKEN_OR_API_KEY\n".into()),
            (issuer("a", &bounded), "  token=TOKEN_OR_API_KEY\n".into()),
        ] {
            assert_eq!(line(&text), expected, "{text}");
        }
    }
}
