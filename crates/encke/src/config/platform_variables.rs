//! Variables that a platform sets for a service whose name begins with `encke`, such as `ENCKE_PORT=tcp://10.0.0.1:4437`. They
//! begin like those of settings and are none.
//!
//! Kubernetes sets them in every pod of a namespace for each of its Services ("Discovering services"), Docker for each container that
//! is linked by `--link`. A name alone is not enough: `ENCKE_PORT=80` is the mistake of a person, who needs an answer.

use std::net::IpAddr;

/// Whether a platform sets a variable of this name to this value, for a service `encke` or `encke-...`.
pub(super) fn is_of_platform(name: &str, value: &str) -> bool {
    let Some(rest) = name.strip_prefix("ENCKE_") else {
        return false;
    };
    // A service `encke-admin` has variables that begin with ENCKE_ADMIN_, so that the family may begin behind any underscore.
    let mut ends = std::iter::once(rest).chain(
        rest.match_indices('_')
            .map(|(underscore, _)| &rest[underscore + 1..]),
    );
    ends.any(|end| is_of_family(end, value))
}

/// Whether the end of a name, behind the name of the service, and its value are of the family.
fn is_of_family(end: &str, value: &str) -> bool {
    let is_host = || value.parse::<IpAddr>().is_ok();
    if end == "SERVICE_HOST" {
        return is_host();
    }
    if end == "SERVICE_PORT" || end.starts_with("SERVICE_PORT_") {
        return is_port(value);
    }
    // Docker: the name of the link, and the variables of the other container.
    if end == "NAME" {
        return value.starts_with('/');
    }
    if end.starts_with("ENV_") {
        return true;
    }
    let Some(of_port) = end.strip_prefix("PORT") else {
        return false;
    };
    if of_port.is_empty() {
        return is_url(value);
    }
    let mut parts = of_port.split('_').skip(1);
    let (port, protocol) = (parts.next(), parts.next());
    if !port.is_some_and(is_port) || !protocol.is_some_and(|one| PROTOCOLS.contains(&one)) {
        return false;
    }
    match (parts.next(), parts.next()) {
        (None, _) => is_url(value),
        (Some("ADDR"), None) => is_host(),
        (Some("PORT"), None) => is_port(value),
        (Some("PROTO"), None) => PROTOCOLS.contains(&&*value.to_uppercase()),
        // Docker also names the ends of a range of ports: _PORT_START and _PORT_END.
        (Some("PORT"), Some("START" | "END")) => is_url(value),
        _ => false,
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

/// Whether a value is an address with its protocol, such as `tcp://10.0.0.1:4437`.
fn is_url(value: &str) -> bool {
    let protocol = value.split_once("://").map(|(protocol, _)| protocol);
    protocol.is_some_and(|protocol| PROTOCOLS.contains(&&*protocol.to_uppercase()))
}

/// The protocols of ports.
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_platform_sets_for_a_service_is_recognised() {
        for (name, value) in [
            // Kubernetes, for a Service named encke with a port named http.
            ("ENCKE_SERVICE_HOST", "10.96.0.7"),
            ("ENCKE_SERVICE_PORT", "4437"),
            ("ENCKE_SERVICE_PORT_HTTP", "4437"),
            ("ENCKE_PORT", "tcp://10.96.0.7:4437"),
            ("ENCKE_PORT_4437_TCP", "tcp://10.96.0.7:4437"),
            ("ENCKE_PORT_4437_TCP_PROTO", "tcp"),
            ("ENCKE_PORT_4437_TCP_PORT", "4437"),
            ("ENCKE_PORT_4437_TCP_ADDR", "10.96.0.7"),
            // Services encke-admin, encke-log-shipper and encke-port, with other protocols and IPv6.
            ("ENCKE_ADMIN_SERVICE_HOST", "fd00::7"),
            ("ENCKE_ADMIN_PORT", "tcp://[fd00::7]:4438"),
            ("ENCKE_LOG_SHIPPER_PORT_514_UDP", "udp://10.96.0.9:514"),
            ("ENCKE_LOG_SHIPPER_PORT_514_UDP_PROTO", "udp"),
            ("ENCKE_PORT_SERVICE_PORT", "1"),
            ("ENCKE_PORT_PORT_9_SCTP_ADDR", "10.96.0.9"),
            // Docker, for a link named encke.
            ("ENCKE_NAME", "/app/encke"),
            ("ENCKE_ENV_ENCKE_LISTEN", "0.0.0.0:4437"),
            ("ENCKE_PORT_4437_TCP_PORT_START", "tcp://172.17.0.2:4437"),
        ] {
            assert!(is_of_platform(name, value), "{name}={value}");
        }
    }

    #[test]
    fn what_a_person_may_have_meant_as_a_setting_is_not() {
        for (name, value) in [
            ("ENCKE_PORT", "80"),
            ("ENCKE_PORT", "127.0.0.1:80"),
            ("ENCKE_PORT", ""),
            ("ENCKE_PORT_80", "tcp://10.96.0.7:80"),
            ("ENCKE_PORT_80_HTTP", "tcp://10.96.0.7:80"),
            ("ENCKE_PORTS", "tcp://10.96.0.7:80"),
            ("ENCKE_SERVICE_HOST", "localhost"),
            ("ENCKE_SERVICE", "10.96.0.7"),
            ("ENCKE_NAME", "node-1"),
            ("ENCKE_LISEN", "tcp://10.96.0.7:4437"),
            ("ENCKE_", ""),
            ("PORT", "tcp://10.96.0.7:4437"),
        ] {
            assert!(!is_of_platform(name, value), "{name}={value}");
        }
    }
}
