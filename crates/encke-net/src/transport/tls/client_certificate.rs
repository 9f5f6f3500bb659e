//! The names in a client's certificate, and when it ends.

use std::time::Duration;

use encke_access::ClientCertificate;
use encke_clock::WallTime;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, Error};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// What is to be known of the client whose chain of certificates was verified in the handshake, or in an earlier one.
///
/// # Errors
/// The session is resumed, and the certificates that its ticket holds are not valid any more.
pub(super) fn of_client(
    chain: &[CertificateDer<'_>],
    verifier: &dyn ClientCertVerifier,
    resumed: bool,
    now: UnixTime,
) -> Result<ClientCertificate, Error> {
    let (own, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
    if resumed {
        // A ticket is good for hours, and rustls looks at no date of what it holds.
        verifier.verify_client_cert(own, others, now)?;
    }
    let certificate = parse(own)?;
    let mut ends_at_s = end(&certificate);
    let mut sooner = Vec::new();
    for other in others {
        let other_ends_at_s = parse(other).map_or(u64::MAX, |other| end(&other));
        sooner.extend((other_ends_at_s < ends_at_s).then_some(other_ends_at_s));
    }
    sooner.sort_unstable();
    // Some chains hold certificates that are not needed, and may end.
    for other_ends_at_s in sooner {
        let then = UnixTime::since_unix_epoch(Duration::from_secs(other_ends_at_s));
        if verifier.verify_client_cert(own, others, then).is_err() {
            ends_at_s = other_ends_at_s;
            break;
        }
    }
    Ok(ClientCertificate {
        names: names(&certificate),
        ends_at: WallTime::from_ms(ends_at_s.saturating_mul(1_000)),
    })
}

fn parse<'a>(der: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    let parsed = X509Certificate::from_der(der);
    let (_, certificate) =
        parsed.map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    Ok(certificate)
}

/// The first second at which a certificate is not valid any more: its `notAfter` is the last one.
fn end(certificate: &X509Certificate<'_>) -> u64 {
    let last_s = certificate.validity().not_after.timestamp();
    u64::try_from(last_s).map_or(0, |last_s| last_s.saturating_add(1))
}

/// The common name of a certificate's subject, and its alternative names: DNS names, addresses of mail, URIs.
fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
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
    names
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
        let found = super::names(&parse(certificate.der()).unwrap());
        let found: Vec<&str> = found.iter().map(String::as_str).collect();
        assert!(found.contains(&"worker 7"), "{found:?}");
        assert_eq!(
            found[found.len() - 2..],
            ["worker.test", "spiffe://x/worker"]
        );
        assert!(parse(&CertificateDer::from(vec![1, 2])).is_err());
    }
}
