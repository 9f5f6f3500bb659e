//! A GET that takes a job. Browsers send GET for every image and link of any page, without asking and often without saying who
//! asks. So POST is the way to take jobs; a GET does it for an EventSource, which can send nothing else, for scripts, and for
//! programs that are no browsers.

use crate::problem::error;
use crate::request::Request;
use crate::response::Response;

/// Refuses a GET that a page may have caused without a script of an allowed origin.
pub(super) fn check_get(request: &Request<'_>) -> Result<(), Response> {
    match is_of_a_script(request) {
        true => Ok(()),
        false => Err(error(
            403,
            "use_post",
            "a request for work takes a job, so a page must send it as POST, or with an EventSource",
        )),
    }
}

fn is_of_a_script(request: &Request<'_>) -> bool {
    let text = |name| request.headers.text(name).ok().flatten();
    // Browsers say how they came to send it, where the connection is secure or local (Fetch Metadata). Images, links and frames are
    // `no-cors` and `navigate`. A script of another origin is `cors`, and its origin has been checked.
    if let Some(mode) = request.headers.first("Sec-Fetch-Mode") {
        return matches!(mode, b"cors" | b"same-origin");
    }
    if request.headers.first("Origin").is_some() {
        return true;
    }
    let is_browser = text("User-Agent").is_some_and(|agent| agent.starts_with("Mozilla/"));
    // Elsewhere only the server's own pages are known: a page can leave the field out, and cannot set it to another origin.
    !is_browser || text("Referer").is_some_and(|referer| host_of(referer) == request.host())
}

/// The host and port of a URL.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    rest.split('/').next().filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{CallerInfo, Headers};

    fn is_refused(fields: &[(&str, &str)]) -> bool {
        let fields: Vec<(&str, &[u8])> = fields
            .iter()
            .map(|(name, value)| (*name, value.as_bytes()))
            .chain([("Host", &b"h:1"[..])])
            .collect();
        let request = Request {
            method: "GET",
            path: "/v1/pool/p/work",
            query: None,
            headers: Headers(&fields),
            body: Vec::new(),
            caller: CallerInfo::default(),
            now: encke_clock::Now::default(),
            barriers: 0,
            upgrade: false,
        };
        check_get(&request).is_err()
    }

    #[test]
    fn images_links_and_frames_take_no_job() {
        let browser = ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)");
        for fields in [
            &[("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")][..],
            &[("Sec-Fetch-Mode", "navigate")],
            &[
                ("Sec-Fetch-Mode", "no-cors"),
                ("Sec-Fetch-Site", "same-origin"),
            ],
            &[browser],
            &[browser, ("Referer", "http://evil.example/h:1")],
            &[browser, ("Referer", "http://h:1.evil.example/")],
            &[browser, ("Referer", "h:1")],
        ] {
            assert!(is_refused(fields), "{fields:?}");
        }
        for fields in [
            &[][..],
            &[("User-Agent", "curl/8.14.1"), ("Accept", "*/*")],
            &[
                browser,
                ("Sec-Fetch-Mode", "cors"),
                ("Sec-Fetch-Site", "cross-site"),
            ],
            &[
                browser,
                ("Sec-Fetch-Mode", "cors"),
                ("Sec-Fetch-Site", "same-origin"),
            ],
            &[browser, ("Origin", "http://app.example")],
            &[browser, ("Referer", "http://h:1/page")],
        ] {
            assert!(!is_refused(fields), "{fields:?}");
        }
    }
}
