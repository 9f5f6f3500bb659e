//! The page for operators at `/admin`: files that are a part of the program. They hold nothing of the server, so that they need no
//! credentials; what the page shows, it asks the API below `/v1/admin/` for.

use crate::response::Response;

/// A file of the page.
struct PageFile {
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

/// The file at a path, if there is one.
pub(super) fn file(path: &str) -> Option<Response> {
    let file = FILES.iter().find(|file| file.path == path)?;
    Some(
        Response::new(200)
            .field("Content-Type", file.content_type)
            // Another version of the server has other files at the same paths.
            .field("Cache-Control", "no-cache")
            .field("Content-Security-Policy", POLICY)
            .field("X-Content-Type-Options", "nosniff")
            .field("Referrer-Policy", "no-referrer")
            .field("Cross-Origin-Opener-Policy", "same-origin")
            .field("Cross-Origin-Resource-Policy", "same-origin")
            .body(file.content),
    )
}

/// Scripts, styles and requests of the server itself, and nothing else: no script within the page, no other origin, no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file that the page loads, from its name in the folder `page`.
macro_rules! beside {
    ($name:literal, $content_type:expr) => {
        PageFile {
            path: concat!("/admin/", $name),
            content_type: $content_type,
            content: include_str!(concat!("page/", $name)),
        }
    };
}

const FILES: &[PageFile] = &[
    PageFile {
        path: PAGE,
        content_type: "text/html; charset=utf-8",
        content: include_str!("page/index.html"),
    },
    beside!("page.css", "text/css; charset=utf-8"),
    beside!("page.js", SCRIPT),
    beside!("api.js", SCRIPT),
    beside!("elements.js", SCRIPT),
    beside!("plot.js", SCRIPT),
    beside!("server.js", SCRIPT),
    beside!("connections.js", SCRIPT),
    beside!("streams.js", SCRIPT),
    beside!("pools.js", SCRIPT),
    beside!("access.js", SCRIPT),
    beside!("icon.svg", "image/svg+xml"),
];

/// The page itself.
pub(super) const PAGE: &str = "/admin";

/// What it loads is below this prefix.
pub(super) const FILES_BELOW: &str = "/admin/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_its_own_files_only() {
        let mut named = std::collections::BTreeSet::new();
        for file in FILES {
            for quoted in file.content.split(['"', '\'']) {
                let is_other = quoted.contains("://") && !quoted.contains("www.w3.org/");
                assert!(!is_other, "{} names {quoted}", file.path);
                let local = quoted
                    .strip_prefix("./")
                    .filter(|name| name.ends_with(".js"));
                let path = local.map_or_else(|| quoted.to_owned(), |name| format!("/admin/{name}"));
                if path.starts_with(FILES_BELOW) {
                    assert!(super::file(&path).is_some(), "{} names {path}", file.path);
                    named.insert(path);
                }
            }
        }
        let files = FILES.iter().map(|file| file.path.to_owned());
        let unnamed: Vec<_> = files
            .filter(|path| path != PAGE && !named.contains(path))
            .collect();
        assert!(unnamed.is_empty(), "nothing loads {unnamed:?}");
    }

    #[test]
    fn nothing_in_the_page_needs_a_weaker_policy() {
        let page = FILES[0].content;
        for inline in ["<style", "style=", "onclick", "onload", "javascript:"] {
            assert!(!page.contains(inline), "{inline}");
        }
        assert_eq!(
            page.matches("<script").count(),
            page.matches("<script type=\"module\" src=").count()
        );
        for file in FILES {
            for unsafe_way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
                ".style.",
            ] {
                assert!(
                    !file.content.contains(unsafe_way),
                    "{}: {unsafe_way}",
                    file.path
                );
            }
        }
        assert!(!POLICY.contains("unsafe"));
    }
}
