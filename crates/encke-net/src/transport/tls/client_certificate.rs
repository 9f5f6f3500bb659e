//! The names in a client's certificate.

use encke_access::ClientCertificate;
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Reads the common name of a certificate's subject, and its alternative names: DNS names, addresses of mail, URIs. The certificate
/// was verified in the handshake. `None`: it can't be parsed.
pub(super) fn names(der: &CertificateDer<'_>) -> Option<ClientCertificate> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let common_names = certificate.subject().iter_common_name();
    let mut names: Vec<String> = common_names
        .filter_map(|name| name.as_str().ok())
        .map(str::to_owned)
        .collect();
    if let Ok(Some(extension)) = certificate.subject_alternative_name() {
        for name in &extension.value.general_names {
            match name {
                GeneralName::DNSName(name)
                | GeneralName::RFC822Name(name)
                | GeneralName::URI(name) => names.push((*name).to_owned()),
                _ => {}
            }
        }
    }
    Some(ClientCertificate { names })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_and_alternative_names_are_found() {
        let names = ["worker.test".to_owned(), "127.0.0.1".to_owned()];
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, "worker 7");
        let uri = "spiffe://x/worker".try_into().unwrap();
        params.subject_alt_names.push(rcgen::SanType::URI(uri));
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let found = super::names(certificate.der()).unwrap();
        let found: Vec<&str> = found.names.iter().map(String::as_str).collect();
        assert!(found.contains(&"worker 7"), "{found:?}");
        assert_eq!(
            found[found.len() - 2..],
            ["worker.test", "spiffe://x/worker"]
        );
        assert_eq!(super::names(&CertificateDer::from(vec![1, 2])), None);
    }
}
