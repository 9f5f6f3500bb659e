//! `encke token` and `encke sign`: make credentials, and explain them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use encke_access::{
    Access, AccessDenied, CanonicalPath, Credentials, Mint, NewToken, Operation, PathPattern,
    SignedField, UrlToSign, api_key,
};
use encke_protocol::{Headers, ProtocolSettings};

use crate::client_args::ClientArgs;
use crate::config::{AccessTable, duration};
use crate::explanation::{KeysUnknown, RequestToExplain, explain_request, refused};
use crate::failure::{Code, Failed};
use crate::keys;
use crate::standard_output::print;

/// The arguments of `encke token`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    command: Option<TokenCommand>,

    #[command(flatten)]
    new: NewTokenArgs,
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Print what a token grants, and why a request with it would be allowed or refused
    Explain(ExplainArgs),
    /// Print a new API key, and the entry for the configuration, which holds its hash only
    NewKey(NewKeyArgs),
}

#[derive(Args, Debug)]
struct NewTokenArgs {
    #[arg(
        long,
        help = CONFIG_HELP,
        env = "ENCKE_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    config: Option<PathBuf>,

    /// The issuer by its name, if there are several with a secret or a private key
    #[arg(long, value_name = "NAME")]
    issuer: Option<String>,

    /// The subject
    #[arg(long, value_name = "SUBJECT")]
    sub: Option<String>,

    /// Actions and a path pattern that the token allows, such as read,append=/v1/stream/chat/**. May be repeated; without it the
    /// token allows what the configuration grants to its issuer
    #[arg(long, value_name = "ACTIONS=PATH", value_parser = allowed)]
    allow: Vec<(Vec<Operation>, PathPattern)>,

    /// Another claim, of text, such as team=red. May be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    claim: Vec<(String, String)>,

    /// The name by which the token can be revoked; random if not given
    #[arg(long, value_name = "ID")]
    jti: Option<String>,

    /// How long the token is valid
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    expires: Duration,
}

#[derive(Args, Debug)]
struct ConfigArg {
    #[arg(
        long,
        help = CONFIG_HELP,
        env = "ENCKE_CONFIG",
        hide_env_values = true,
        value_name = "FILE"
    )]
    config: PathBuf,
}

#[derive(Args, Debug)]
struct ExplainArgs {
    #[command(flatten)]
    config: ConfigArg,

    /// A file with the key set of the token's issuer; without it, the keys of a jwks-url are fetched
    #[arg(long, value_name = "FILE")]
    jwks: Option<PathBuf>,

    #[command(flatten)]
    client: ClientArgs,

    /// The token or API key
    token: String,

    /// The method of the request, such as GET
    method: String,

    /// The path of the request, such as /v1/stream/chat/general, with its query
    path: String,

    /// A header field that the request has and that changes what it needs, such as 'Encke-Truncate: now'. May be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    field: Vec<(String, String)>,
}

#[derive(Args, Debug)]
struct NewKeyArgs {
    /// The name of the key in logs and revocations
    #[arg(long, value_name = "NAME", default_value = "backend")]
    name: String,
}

/// The arguments of `encke sign`.
#[derive(Args, Debug)]
pub(crate) struct SignArgs {
    #[command(flatten)]
    config: ConfigArg,

    /// The signing key, if there are several
    #[arg(long, value_name = "KID")]
    kid: Option<String>,

    /// The method that the URL is good for; GET includes HEAD
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: String,

    /// How long the URL is good
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1h")]
    expires: Duration,

    /// A header field that requests with the URL must have, such as 'Stream-Closed: true', or its name alone for any value. May be
    /// repeated. Fields that change what a request does are refused unless the URL signs them
    #[arg(long, value_name = "NAME: VALUE")]
    field: Vec<SignedField>,

    /// The URL, or its path and query
    url: String,
}

/// Makes or explains a token.
pub(crate) fn token(args: &TokenArgs) -> Result<ExitCode, Failed> {
    let result = match &args.command {
        None => new_token(&args.new).map(|token| format!("{token}\n")),
        Some(TokenCommand::Explain(args)) => return explain(args),
        Some(TokenCommand::NewKey(args)) => new_key(args),
    };
    let text = result.map_err(|error| Code::Usage.with(error))?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Signs a URL.
pub(crate) fn sign(args: &SignArgs) -> Result<ExitCode, Failed> {
    let url = signed(args).map_err(|error| Code::Usage.with(error))?;
    print(&format!("{url}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn new_token(args: &NewTokenArgs) -> anyhow::Result<String> {
    let config = args.config.as_deref().context(
        "--config is missing: the configuration file with the table [access], whose issuer signs the token",
    )?;
    let table = AccessTable::read(config)?;
    let issuers = table.config.issuers.iter().enumerate();
    let mut chosen: Box<dyn Iterator<Item = _>> = match &args.issuer {
        Some(name) => Box::new(issuers.filter(move |(_, one)| one.shown_name() == name)),
        None => Box::new(table.signers()),
    };
    let (at, issuer) = match (chosen.next(), chosen.next(), &args.issuer) {
        (Some(one), None, _) => one,
        (Some(_), Some(_), _) => {
            bail!("--issuer is missing: several issuers have a secret or a private key")
        }
        (None, _, Some(name)) => bail!("--issuer {name:?} is no issuer of the configuration"),
        (None, _, None) => bail!(
            "no issuer of the configuration has a secret, secret-file or private-key-file, with which it could sign"
        ),
    };
    let mint = Mint::new(issuer, &format!("access.issuers[{at}]"), &|path| {
        table.file(path)
    })?;
    let now_s = encke_net::wall_time().as_ms() / 1_000;
    let grants = args.allow.iter().flat_map(|(operations, pattern)| {
        operations
            .iter()
            .map(|operation| (*operation, pattern.clone()))
    });
    let new = NewToken {
        subject: args.sub.clone(),
        id: Some(match &args.jti {
            Some(id) => id.clone(),
            None => random::<16>()?
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        }),
        grants: (!args.allow.is_empty()).then(|| grants.collect()),
        claims: args.claim.iter().cloned().collect(),
        issued_at_s: now_s,
        expires_s: now_s.saturating_add(args.expires.as_secs()),
    };
    let token = mint.token(&new)?;
    // What the server would refuse is no token.
    let access = table.access()?;
    if issuer.jwks_url.is_none() {
        let path = CanonicalPath::parse("/")?;
        resolve(&access, &token, "GET", &path).context("the server would refuse the token")?;
    }
    Ok(token)
}

fn new_key(args: &NewKeyArgs) -> anyhow::Result<String> {
    let (key, sha256) = api_key(random()?);
    Ok(format!(
        "{key}\n\n\
         # For the configuration file, which needs the hash only:\n\
         [[access.api-keys]]\n\
         name = {:?}\n\
         sha256 = \"{sha256}\"\n\
         grants = [{{ actions = [\"read\", \"append\", \"create\"], paths = [\"/v1/stream/**\"] }}]\n",
        args.name
    ))
}

fn signed(args: &SignArgs) -> anyhow::Result<String> {
    let table = AccessTable::read(&args.config.config)?;
    let access = table.access()?;
    let keys = &table.config.signing_keys;
    let kid = match (&args.kid, &keys[..]) {
        (Some(kid), _) => kid,
        (None, [only]) => &only.kid,
        (None, []) => bail!("the configuration has no [[access.signing-keys]]"),
        (None, _) => bail!("--kid is missing: the configuration has several signing keys"),
    };
    let is_method = |byte: u8| byte.is_ascii_uppercase();
    ensure!(
        !args.method.is_empty() && args.method.bytes().all(is_method),
        "--method must be in upper case, such as GET"
    );
    let url = args.url.split('#').next().unwrap_or_default();
    let begin = match url.find("://") {
        Some(at) => {
            let host = at + "://".len();
            url[host..].find('/').map(|slash| host + slash)
        }
        None => Some(0),
    };
    let (base, target) = url.split_at(begin.context("the URL has no path")?);
    let now_s = encke_net::wall_time().as_ms() / 1_000;
    let expires_s = now_s.saturating_add(args.expires.as_secs());
    let path = CanonicalPath::parse(target.split('?').next().unwrap_or_default())?;
    let signed = access.sign_url(
        kid,
        &UrlToSign {
            method: &args.method,
            target,
            path: &ProtocolSettings::default().resolve(path)?,
            fields: &args.field,
            stream: None,
            expires_s,
        },
    )?;
    Ok(format!("{base}{signed}"))
}

fn explain(args: &ExplainArgs) -> Result<ExitCode, Failed> {
    let (text, is_allowed) = explanation(args).map_err(|error| Code::Usage.with(error))?;
    print(&text)?;
    Ok(match is_allowed {
        true => ExitCode::SUCCESS,
        false => Code::Running.into(),
    })
}

/// What the server would say, and whether it would allow the request.
fn explanation(args: &ExplainArgs) -> anyhow::Result<(String, bool)> {
    let table = AccessTable::read(&args.config.config)?;
    let access = table.access()?;
    if let Some(file) = &args.jwks {
        use_key_set(&access, file)?;
    }
    let fields = args.field.iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| (&**name, value.as_bytes()))
        .collect();
    let request = RequestToExplain {
        token: &args.token,
        method: &args.method,
        target: &args.path,
        headers: Headers(&fields),
    };
    let settings = ProtocolSettings::default();
    let explained = match explain_request(&access, &settings, &request) {
        Err(KeysUnknown { issuer }) if args.jwks.is_none() => {
            fetch_keys(
                &access,
                &issuer,
                &keys::agent(&args.client.rules(), table.config.jwks_timeout),
            )?;
            explain_request(&access, &settings, &request)
        }
        explained => explained,
    };
    let explained = explained.unwrap_or_else(|KeysUnknown { .. }| {
        // Nothing else will bring the key here.
        refused(String::new(), &AccessDenied::UnknownKey)
    });
    Ok((explained.text, explained.is_allowed))
}

/// The token selects the issuer, so that it does no harm to give the set to each.
fn use_key_set(access: &Access, file: &Path) -> anyhow::Result<()> {
    let json = encke_files::read_text(file)
        .with_context(|| format!("the key set {} can't be read", file.display()))?;
    let fetches = access.key_fetches();
    let sources = fetches.locations().len();
    ensure!(
        sources > 0,
        "--jwks is for issuers with a jwks-url, and there is none"
    );
    let results: Vec<_> = (0..sources)
        .map(|source| access.keys_fetched(&fetches, source, Some(json.as_bytes())))
        .collect();
    match results.iter().any(Result::is_ok) {
        true => Ok(()),
        false => results
            .into_iter()
            .collect::<Result<(), _>>()
            .with_context(|| format!("the key set {} can't be used", file.display())),
    }
}

fn fetch_keys(access: &Access, issuer: &str, agent: &ureq::Agent) -> anyhow::Result<()> {
    let fetches = access.key_fetches();
    let locations = fetches.locations();
    let source = locations.iter().position(|one| one.issuer == issuer);
    let source = source.context("the issuer has no jwks-url")?;
    let url = locations[source].url;
    // The fetch that the token waits for begins.
    fetches.wait(source, Duration::ZERO);
    let json =
        keys::fetch(agent, url).with_context(|| format!("the keys can't be fetched from {url}"))?;
    access.keys_fetched(&fetches, source, Some(&json))?;
    Ok(())
}

fn resolve(
    access: &Access,
    token: &str,
    method: &str,
    path: &CanonicalPath<'_>,
) -> Result<encke_access::Resolved, AccessDenied> {
    let value = format!("Bearer {token}");
    let request = Credentials {
        method,
        path,
        query: None,
        headers: &[("authorization", value.as_bytes())],
        client_certificate: None,
        address: None,
        free_parameters: &[],
    };
    access.resolve(&request, encke_net::now())
}

/// Reads `read,append=/v1/stream/chat/**`.
fn allowed(text: &str) -> anyhow::Result<(Vec<Operation>, PathPattern)> {
    let (operations, pattern) = text
        .split_once('=')
        .context("must be actions and a path pattern, such as read,append=/v1/stream/chat/**")?;
    let operations = operations.split(',').map(str::parse);
    Ok((operations.collect::<Result<_, _>>()?, pattern.parse()?))
}

/// Reads `Encke-Truncate: now`.
fn header(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text
        .split_once(':')
        .context("must be a name and a value, such as Encke-Truncate: now")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn pair(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = text
        .split_once('=')
        .context("must be a name and a value, such as team=red")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn random<const N: usize>() -> anyhow::Result<[u8; N]> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| anyhow::anyhow!("the system gives no random bytes"))?;
    Ok(bytes)
}

/// The help of `--config`. A flag's help is no doc comment where it has brackets, which rustdoc takes for a link.
const CONFIG_HELP: &str = "The configuration file with the table [access]";

#[cfg(test)]
mod tests;
