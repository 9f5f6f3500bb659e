//! What a client's certificate says of its owner.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The names in a client's certificate, which was verified in the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The common name of the subject.
    pub common_name: Option<String>,
    /// The alternative names of the subject: DNS names, addresses of mail, URIs.
    pub alternative_names: Vec<String>,
}

impl ClientCertificate {
    /// Reads the names. `None`: it can't be parsed.
    pub(super) fn parse(der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let mut common_names = certificate.subject().iter_common_name();
        let common_name = common_names.next().and_then(|name| name.as_str().ok());
        let mut alternative_names = Vec::new();
        if let Ok(Some(extension)) = certificate.subject_alternative_name() {
            for name in &extension.value.general_names {
                match name {
                    GeneralName::DNSName(name)
                    | GeneralName::RFC822Name(name)
                    | GeneralName::URI(name) => alternative_names.push((*name).to_owned()),
                    _ => {}
                }
            }
        }
        Some(ClientCertificate {
            common_name: common_name.map(str::to_owned),
            alternative_names,
        })
    }
}
