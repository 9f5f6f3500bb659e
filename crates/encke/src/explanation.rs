//! Why a request with a credential would be allowed or refused: for `encke token explain`, and for operators of a running server.

use std::fmt::Display;
use std::sync::Arc;

use encke_access::{Access, AccessDenied, CanonicalPath, Credentials};
use encke_protocol::{ExplainedRequest, Headers, ProtocolSettings};
use encke_server::Explain;

pub(crate) use encke_server::Explanation;

/// A request that is not made.
#[derive(Clone, Copy)]
pub(crate) struct RequestToExplain<'r> {
    pub(crate) token: &'r str,
    pub(crate) method: &'r str,
    /// The path, with its query.
    pub(crate) target: &'r str,
    /// Fields that change what the request needs.
    pub(crate) headers: Headers<'r>,
}

/// The keys of the token's issuer are not there.
#[derive(Debug)]
pub(crate) struct KeysUnknown {
    /// The name of the issuer.
    pub(crate) issuer: Arc<str>,
}

/// Explains requests by the access control and the protocols of a running server.
pub(crate) struct ServerExplainer {
    /// The access control, if there is one.
    pub(crate) access: Option<Arc<Access>>,
    pub(crate) settings: ProtocolSettings,
}

/// What the server would say, as lines of text.
///
/// # Errors
/// The keys of the token's issuer are not there.
pub(crate) fn explain_request(
    access: &Access,
    settings: &ProtocolSettings,
    request: &RequestToExplain<'_>,
) -> Result<Explanation, KeysUnknown> {
    let RequestToExplain {
        token,
        method,
        target,
        headers,
    } = *request;
    let (raw, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let path = match CanonicalPath::parse(raw) {
        Ok(path) => path,
        Err(error) => return Ok(refused(String::new(), &error)),
    };
    let value = format!("Bearer {token}");
    let credentials = Credentials {
        method,
        path: &path,
        query: None,
        headers: &[("authorization", value.as_bytes())],
        client_certificate: None,
        address: None,
        free_parameters: &[],
    };
    let now = encke_net::now();
    let caller = match access.resolve_uncounted(&credentials, now) {
        Ok(resolved) => resolved.caller,
        Err(AccessDenied::KeysUnknown { issuer }) => return Err(KeysUnknown { issuer }),
        // Nothing else will bring the key here.
        Err(AccessDenied::KeysUnavailable { .. }) => {
            return Ok(refused(String::new(), &AccessDenied::UnknownKey));
        }
        Err(denied) => return Ok(refused(String::new(), &denied)),
    };
    let mut text = caller.describe();
    if let Some(ends_at) = caller.ends_at() {
        let left = ends_at.since(now.wall);
        text += &format!("ends in: {left:.0?}, the leeway included\n");
    }
    let needed = match settings.requirements(method, &path, query, headers) {
        Ok(needed) => needed,
        Err(why) => return Ok(refused(text, &why)),
    };
    if needed.is_empty() {
        text += &format!("allowed: {method} {path} needs no grant\n");
    }
    for requirement in &needed {
        let is_met = requirement.is_met_by(&*caller);
        let verdict = if is_met { "allowed" } else { "refused" };
        text += &format!("{verdict}: {}\n", requirement.explain(&caller));
    }
    let is_allowed = needed.iter().all(|one| one.is_met_by(&*caller));
    Ok(Explanation { text, is_allowed })
}

impl Explain for ServerExplainer {
    fn explain(&self, request: &ExplainedRequest) -> Result<Explanation, String> {
        let Some(access) = &self.access else {
            return Err("there is no access control".to_owned());
        };
        let request = RequestToExplain {
            token: &request.token,
            method: &request.method,
            target: &request.path,
            headers: Headers(&[]),
        };
        explain_request(access, &self.settings, &request).map_err(|KeysUnknown { issuer }| {
            format!("the keys of {issuer} are being fetched; ask again in some seconds")
        })
    }
}

/// An explanation that ends with a refusal.
pub(crate) fn refused(text: String, why: &dyn Display) -> Explanation {
    Explanation {
        text: format!("{text}refused: {why}\n"),
        is_allowed: false,
    }
}
