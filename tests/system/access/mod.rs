//! Access control at the binary: who may do what, what is concealed, and what ends when credentials end.

mod browsers;
mod failed_tokens;
mod grants;
mod issuer_keys;
mod operators;
mod pools;
mod quotas;
mod reload;
mod retention;
mod revocation;
mod seats;
mod signed_urls;
mod sites;
mod stored_quotas;
mod upgrades;

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::rig::{
    Brokers, Encke, Ended, JSON, SteppedClock, command, data_dir, operators_address, serve,
};

/// A server with access control, and the address for its operators.
pub(crate) struct Guarded {
    pub(crate) encke: Encke,
    stdout: std::io::BufReader<std::process::ChildStdout>,
    pub(crate) operators: std::net::SocketAddr,
    config: std::path::PathBuf,
    _config_dir: TempDir,
    /// The data, unless a test keeps it for another server.
    _data: Option<TempDir>,
}

impl Guarded {
    pub(crate) fn start(flags: &[&str]) -> Guarded {
        let (mut guarded, data) = Guarded::start_in(data_dir(), flags);
        guarded._data = Some(data);
        guarded
    }

    /// The same with further text of the configuration file.
    pub(crate) fn start_with(further: &str) -> Guarded {
        Guarded::start_with_flags(further, &[])
    }

    fn start_with_flags(further: &str, flags: &[&str]) -> Guarded {
        let (data, config_dir) = (data_dir(), data_dir());
        let config = config_dir.path().join("encke.toml");
        let text = format!("{}{further}", configuration());
        std::fs::write(&config, text).expect("a file can be written");
        let mut guarded = Guarded::again(&config, config_dir, data.path(), flags);
        guarded._data = Some(data);
        guarded
    }

    /// The same by a clock that a test sets.
    pub(crate) fn by_clock(clock: &SteppedClock, flags: &[&str]) -> Guarded {
        let (data, config_dir) = (data_dir(), data_dir());
        let config = config_dir.path().join("encke.toml");
        std::fs::write(&config, configuration()).expect("a file can be written");
        let mut command = serve(data.path(), flags);
        clock.applied_to(&mut command);
        let mut guarded = Guarded::by(&mut command, &config, config_dir);
        guarded._data = Some(data);
        guarded
    }

    fn start_in(data: TempDir, flags: &[&str]) -> (Guarded, TempDir) {
        let config_dir = data_dir();
        let config = config_dir.path().join("encke.toml");
        std::fs::write(&config, configuration()).expect("a file can be written");
        let guarded = Guarded::again(&config, config_dir, data.path(), flags);
        (guarded, data)
    }

    /// A node of a fleet, whose order has one copy at the brokers.
    fn node(brokers: &Brokers, name: &str) -> (Guarded, TempDir) {
        let urls = brokers.urls();
        let fleet = ["--fleet", &urls, "--node", name];
        let replicas = ["--tuning", "fleet-replicas=1"];
        Guarded::start_in(data_dir(), &[&fleet[..], &replicas].concat())
    }

    fn again(config: &Path, config_dir: TempDir, data: &Path, flags: &[&str]) -> Guarded {
        Guarded::by(&mut serve(data, flags), config, config_dir)
    }

    /// Ends it in one of the ways of [`Encke`], and starts it again with the same data.
    fn restarted(self, data: &Path, end: impl FnOnce(Encke)) -> Guarded {
        end(self.encke);
        Guarded::again(&self.config, self._config_dir, data, &[])
    }

    fn by(command: &mut Command, config: &Path, config_dir: TempDir) -> Guarded {
        let command = command.arg("--config").arg(config);
        let mut encke = Encke::start_by(command.args(["--admin-listen", "127.0.0.1:0"]));
        let mut stdout = encke.take_stdout();
        let operators = operators_address(&mut stdout);
        Guarded {
            encke,
            stdout,
            operators,
            config: config.to_owned(),
            _config_dir: config_dir,
            _data: None,
        }
    }

    /// Creates a stream as the backend.
    pub(crate) fn create(&self, path: &str, body: &[u8]) {
        let (status, _) = self.ask("PUT", path, &bearer(API_KEY), body);
        assert_eq!(status, 201, "{path}");
    }

    /// The header field with [`Guarded::token_of`].
    pub(crate) fn allowed(&self, subject: &str, allow: &str) -> String {
        bearer(&self.token_of(subject, allow))
    }

    /// A token of an hour, for that subject, that allows this.
    fn token_of(&self, subject: &str, allow: &str) -> String {
        self.token(&["--sub", subject, "--expires", "1h", "--allow", allow])
    }

    /// A token that `encke token` makes.
    pub(crate) fn token(&self, arguments: &[&str]) -> String {
        let config = self.config.to_str().expect("the path is text");
        let mut command = command(&["token", "--config", config]);
        let ended = Ended::of(command.args(arguments));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended.stdout.trim_end().to_owned()
    }

    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        credentials: &str,
        body: &[u8],
    ) -> (u16, String) {
        let fields = [JSON, credentials];
        let fields = match credentials {
            "" => &fields[..1],
            _ => &fields[..],
        };
        let response = self.encke.ask(method, path, fields, body);
        let code = match response.status {
            ..400 => String::new(),
            _ => response.error_code(),
        };
        (response.status, code)
    }
}

/// The text of a configuration file with access control.
fn configuration() -> String {
    CONFIG.replace("SHA", &api_key_digest())
}

fn api_key_digest() -> String {
    let digest = Ended::of(std::process::Command::new("sh").args([
        "-c",
        &format!("printf %s {API_KEY} | sha256sum | cut -d ' ' -f 1"),
    ]));
    digest.stdout.trim().to_owned()
}

pub(crate) fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

pub(crate) const API_KEY: &str = "encke_backend-key-of-some-length-0123456789";

const CONFIG: &str = r#"
[access]
cookie = "encke"
leeway = "0s"
anonymous.grants = [{ actions = ["read"], paths = ["/v1/stream/public/**"] }]

[[access.issuers]]
name = "app"
issuer = "https://app.example"
audience = "encke"
algorithms = ["HS256"]
secret = "a secret of more than thirty-two bytes, for tests"

[[access.signing-keys]]
kid = "links"
secret = "another secret of more than thirty-two bytes"

[[access.api-keys]]
name = "backend"
# The digest of `API_KEY`.
sha256 = "SHA"
grants = [{ actions = ["read", "append", "create", "delete", "admin", "post", "work", "list", "stop", "own"], paths = ["/**"] }]
"#;
