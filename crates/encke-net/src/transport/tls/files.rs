//! Certificates and keys: read from files, chosen by the name that a client asks for, and read again when the files change.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    ClientHello, ParsedCertificate, ProducesTickets, ResolvesServerCert, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::handshake::{ALPN_HTTP2, HandshakeConfig};
use crate::settings::{TlsClients, TlsSettings};

/// The configuration of new handshakes, which can be replaced while the server runs.
#[derive(Debug)]
pub(crate) struct Certificates {
    current: ArcSwap<Loaded>,
}

/// What was read from files.
#[derive(Debug)]
struct Loaded {
    config: HandshakeConfig,
    /// The authorities of clients as they were read: a ticket is good for as long as they stay.
    authorities: Vec<CertificateDer<'static>>,
    tickets: Arc<dyn ProducesTickets>,
}

/// Why certificates and keys can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be read, or is no PEM.
    #[error("{what} {} can't be read: {why}", path.display())]
    Unreadable {
        /// What the file is for, such as `--tls-cert`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's or the parser's error.
        why: String,
    },
    /// A file is readable and has not what it must.
    #[error("{what} {} has {why}", path.display())]
    Useless {
        /// What the file is for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is missing.
        why: &'static str,
    },
    /// A key and a certificate do not belong together, or are of a kind that can't be used.
    #[error("--tls-key {} can't be used with --tls-cert {}: {why}", key.display(), certificate.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong with them.
        why: String,
    },
    /// There are not as many keys as certificates.
    #[error(
        "--tls-cert names {certificates} files and --tls-key {keys}: each certificate needs its key, in the same order"
    )]
    Unpaired {
        /// Files of certificates.
        certificates: usize,
        /// Files of keys.
        keys: usize,
    },
    /// rustls refuses the configuration.
    #[error("TLS can't be set up: {0}")]
    Config(String),
}

/// Something about a certificate or its key that does not keep the server from using it.
#[derive(Debug, PartialEq, Eq)]
pub struct CertificateWarning {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with the certificate in it.
    pub why: String,
}

/// Checks the files of a configuration without serving anything. What it returns does not keep a server from starting.
///
/// # Errors
/// Why a server would not start.
pub fn check_tls(settings: &TlsSettings) -> Result<Vec<CertificateWarning>, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let (_, warnings) = load(settings, provider, None, false)?;
    Ok(warnings)
}

impl Certificates {
    /// Reads all files.
    ///
    /// # Errors
    /// Which file is wrong, and why.
    pub(crate) fn load(settings: &TlsSettings, http2: bool) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let (loaded, warnings) = load(settings, provider, None, http2)?;
        warn(&warnings);
        Ok(Certificates {
            current: ArcSwap::from_pointee(loaded),
        })
    }

    /// Reads all files again. Handshakes from now on use them; connections go on.
    ///
    /// # Errors
    /// Which file is wrong, and why. Everything stays as it was.
    pub(crate) fn reload(&self, settings: &TlsSettings, http2: bool) -> Result<(), TlsError> {
        let before = self.current.load_full();
        let provider = Arc::clone(before.config.server.crypto_provider());
        let (loaded, warnings) = load(settings, provider, Some(&before), http2)?;
        warn(&warnings);
        self.current.store(Arc::new(loaded));
        Ok(())
    }

    /// The configuration of the next handshake.
    pub(super) fn config(&self) -> HandshakeConfig {
        self.current.load().config.clone()
    }
}

/// All files that are read.
pub(crate) fn tls_files(settings: &TlsSettings) -> Vec<PathBuf> {
    let files = settings.certificates.iter().chain(&settings.keys);
    files.chain(&settings.client_ca).cloned().collect()
}

fn warn(warnings: &[CertificateWarning]) {
    for warning in warnings {
        tracing::warn!(file = %warning.path.display(), "{}", warning.why);
    }
}

fn load(
    settings: &TlsSettings,
    provider: Arc<CryptoProvider>,
    before: Option<&Loaded>,
    http2: bool,
) -> Result<(Loaded, Vec<CertificateWarning>), TlsError> {
    let (certificates, keys) = (&settings.certificates, &settings.keys);
    if certificates.len() != keys.len() || certificates.is_empty() {
        return Err(TlsError::Unpaired {
            certificates: certificates.len(),
            keys: keys.len(),
        });
    }
    let mut warnings = Vec::new();
    let mut pairs = Vec::new();
    for (certificate, key) in certificates.iter().zip(keys) {
        let pair = pair(certificate, key, &provider)?;
        warnings.extend(expiry(certificate, &pair));
        warnings.extend(exposure(key));
        pairs.push(Arc::new(pair));
    }
    let authorities = match &settings.client_ca {
        Some(path) => chain("--tls-client-ca", path)?,
        None => Vec::new(),
    };
    let verifier = verifier(settings, &authorities, &provider)?;
    let config = |error: rustls::Error| TlsError::Config(error.to_string());
    let tickets = match before.filter(|before| before.authorities == authorities) {
        Some(before) => Arc::clone(&before.tickets),
        None => aws_lc_rs::Ticketer::new().map_err(config)?,
    };
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(config)?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_cert_resolver(Arc::new(ByName { pairs }));
    server.ticketer = Arc::clone(&tickets);
    server.enable_secret_extraction = true;
    // The provider's order, which begins with AES-256: its ciphers can be dropped while a connection is idle (`keys`).
    server.ignore_client_order = true;
    if http2 {
        server.alpn_protocols.push(ALPN_HTTP2.to_vec());
    }
    server.alpn_protocols.push(b"http/1.1".to_vec());
    let loaded = Loaded {
        config: HandshakeConfig {
            server: Arc::new(server),
            clients: verifier,
        },
        authorities,
        tickets,
    };
    Ok((loaded, warnings))
}

fn pair(
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let certificates = chain("--tls-cert", certificate)?;
    let pem = read("--tls-key", key)?;
    let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::Useless {
            what: "--tls-key",
            path: key.to_owned(),
            why: "no private key in PEM format",
        },
        error => unreadable("--tls-key", key, error.to_string()),
    })?;
    let pair = CertifiedKey::from_der(certificates, private, provider);
    pair.map_err(|error| TlsError::Pair {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        why: match error {
            rustls::Error::InconsistentKeys(_) => "the key belongs to another certificate".into(),
            error => error.to_string(),
        },
    })
}

/// All certificates of a file.
fn chain(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read(what, path)?;
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| unreadable(what, path, error.to_string()))?;
    if found.is_empty() {
        return Err(TlsError::Useless {
            what,
            path: path.to_owned(),
            why: "no certificate in PEM format",
        });
    }
    Ok(found)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let content = encke_files::read_whole(path, PEM_BYTES_MAX);
    content.map_err(|error| unreadable(what, path, error.to_string()))
}

fn unreadable(what: &'static str, path: &Path, why: String) -> TlsError {
    TlsError::Unreadable {
        what,
        path: path.to_owned(),
        why,
    }
}

fn verifier(
    settings: &TlsSettings,
    authorities: &[CertificateDer<'static>],
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let Some(path) = &settings.client_ca else {
        return Ok(WebPkiClientVerifier::no_client_auth());
    };
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        let added = roots.add(authority.clone());
        added.map_err(|error| TlsError::Unreadable {
            what: "--tls-client-ca",
            path: path.clone(),
            why: error.to_string(),
        })?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = match settings.clients {
        TlsClients::Required => builder,
        TlsClients::Optional => builder.allow_unauthenticated(),
    };
    let verifier = builder.build();
    verifier.map_err(|error| TlsError::Config(error.to_string()))
}

/// The warning about a certificate that has expired, or is not valid yet.
fn expiry(path: &Path, pair: &CertifiedKey) -> Option<CertificateWarning> {
    let (_, certificate) = X509Certificate::from_der(pair.cert.first()?).ok()?;
    let validity = certificate.validity();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_s = i64::try_from(now.ok()?.as_secs()).ok()?;
    let why = if now_s > validity.not_after.timestamp() {
        format!("the certificate has expired: {}", validity.not_after)
    } else if now_s < validity.not_before.timestamp() {
        format!(
            "the certificate is not valid before {}",
            validity.not_before
        )
    } else {
        return None;
    };
    Some(CertificateWarning {
        path: path.to_owned(),
        why,
    })
}

/// The warning about a private key that all users of the machine can read or change.
fn exposure(key: &Path) -> Option<CertificateWarning> {
    let mode = std::fs::metadata(key).ok()?.mode();
    (mode & OTHERS != 0).then(|| CertificateWarning {
        path: key.to_owned(),
        why: format!(
            "all users of this machine can read or change the private key: chmod o= {}",
            key.display()
        ),
    })
}

/// The rights to a file of others than its owner and its group.
const OTHERS: u32 = 0o007;

/// Chooses the first certificate for the name that a client asks for; the first of all for others.
#[derive(Debug)]
struct ByName {
    pairs: Vec<Arc<CertifiedKey>>,
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let first = self.pairs.first()?;
        if self.pairs.len() == 1 {
            return Some(Arc::clone(first));
        }
        let name = hello
            .server_name()
            .and_then(|name| ServerName::try_from(name).ok());
        let found = name.and_then(|name| {
            let is_for_name = |pair: &&Arc<CertifiedKey>| {
                let certificate = pair.end_entity_cert().ok();
                certificate
                    .and_then(|certificate| ParsedCertificate::try_from(certificate).ok())
                    .is_some_and(|parsed| verify_server_name(&parsed, &name).is_ok())
            };
            self.pairs.iter().find(is_for_name)
        });
        Some(Arc::clone(found.unwrap_or(first)))
    }
}

/// The longest file of certificates or of a key.
const PEM_BYTES_MAX: u64 = 16 << 20;
