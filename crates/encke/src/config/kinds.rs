//! How values are written as text, and the bounds that they keep.

use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use encke_access::parse_duration;
use jiff::SignedDuration;
use toml::Value;
use tracing_subscriber::EnvFilter;
use ureq::http::Uri;

use crate::zone::{NamedZone, zoned_address};

/// Reads a value of type `T` from text, and writes it as a value of TOML from which it can be read again.
pub(super) trait Kind<T> {
    /// Reads a value. Errors say what is allowed.
    fn parse(&self, text: &str) -> anyhow::Result<T>;

    /// Writes a value; nothing if it is not set.
    fn show(&self, value: &T) -> Option<Value>;

    /// What a value means that stands in a file of this folder: paths in it begin there, wherever the server is started.
    fn within(&self, value: T, _folder: &Path) -> T {
        value
    }
}

/// A type that has a text form of its own.
pub(super) struct Text;

impl<T> Kind<T> for Text
where
    T: FromStr<Err: Into<anyhow::Error>> + Display,
{
    fn parse(&self, text: &str) -> anyhow::Result<T> {
        text.parse().map_err(Into::into)
    }

    fn show(&self, value: &T) -> Option<Value> {
        Some(Value::String(value.to_string()))
    }
}

/// Reads a whole number from the command line.
pub(crate) fn whole_number(text: &str) -> anyhow::Result<u64> {
    text.parse()
        .map_err(|_| anyhow::anyhow!("must be a whole number, such as 1000"))
}

/// An address and a port. Without an address it is 127.0.0.1; a host name is looked up once.
pub(super) struct Address;

impl Kind<SocketAddr> for Address {
    fn parse(&self, text: &str) -> anyhow::Result<SocketAddr> {
        const ALLOWED: &str = "must be an address and a port up to 65535, such as 127.0.0.1:5238, localhost:5238 or 5238";
        if let Ok(address) = text.parse() {
            return Ok(address);
        }
        if let Some(address) = zoned_address(text) {
            return address;
        }
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        let port: u16 = port.parse().map_err(|_| anyhow::anyhow!(ALLOWED))?;
        if host.is_empty() {
            return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        }
        anyhow::ensure!(!host.contains(':'), ALLOWED);
        let found = (host, port).to_socket_addrs();
        let found: Vec<SocketAddr> = found
            .map_err(|error| {
                let why = error.to_string();
                let why = why.rsplit(": ").next().unwrap_or(&why).to_owned();
                anyhow::anyhow!("the host {host} can't be looked up: {why}")
            })?
            .collect();
        let address = found.iter().find(|one| one.is_ipv4()).or(found.first());
        address
            .copied()
            .with_context(|| format!("the host {host} has no address"))
    }

    fn show(&self, value: &SocketAddr) -> Option<Value> {
        Some(Value::String(NamedZone(*value).to_string()))
    }
}

/// The path of a file or a directory.
pub(super) struct FilePath;

impl Kind<PathBuf> for FilePath {
    fn parse(&self, text: &str) -> anyhow::Result<PathBuf> {
        anyhow::ensure!(
            !text.is_empty(),
            "must be the path of a file or a directory"
        );
        Ok(text.into())
    }

    fn show(&self, value: &PathBuf) -> Option<Value> {
        Some(Value::String(value.display().to_string()))
    }

    fn within(&self, value: PathBuf, folder: &Path) -> PathBuf {
        in_folder(folder, value)
    }
}

/// A path that begins in a folder. It is absolute, so that it means the same wherever it is written down; without a folder it stays as it
/// is.
fn in_folder(folder: &Path, path: PathBuf) -> PathBuf {
    let joined = folder.join(&path);
    match folder.as_os_str().is_empty() {
        true => path,
        false => std::path::absolute(&joined).unwrap_or(joined),
    }
}

/// The paths of several files, separated by commas.
pub(super) struct FilePaths;

impl Kind<Vec<PathBuf>> for FilePaths {
    fn parse(&self, text: &str) -> anyhow::Result<Vec<PathBuf>> {
        let paths: Vec<PathBuf> = text.split(',').map(|path| path.trim().into()).collect();
        let named = paths.iter().all(|path| !path.as_os_str().is_empty());
        anyhow::ensure!(
            named,
            "must be the path of a file, or several separated by commas"
        );
        Ok(paths)
    }

    fn show(&self, value: &Vec<PathBuf>) -> Option<Value> {
        let paths: Vec<String> = value
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        (!paths.is_empty()).then(|| Value::String(paths.join(",")))
    }

    fn within(&self, value: Vec<PathBuf>, folder: &Path) -> Vec<PathBuf> {
        value
            .into_iter()
            .map(|path| in_folder(folder, path))
            .collect()
    }
}

/// A filter of log lines.
pub(super) struct LogFilter;

impl Kind<String> for LogFilter {
    fn parse(&self, text: &str) -> anyhow::Result<String> {
        const ALLOWED: &str =
            "must be error, warn, info, debug or trace, or a filter such as info,encke_net=debug";
        EnvFilter::try_new(text).map_err(|_| anyhow::anyhow!(ALLOWED))?;
        Ok(text.to_owned())
    }

    fn show(&self, value: &String) -> Option<Value> {
        Some(Value::String(value.clone()))
    }
}

/// `true` or `false`.
pub(super) struct Switch;

impl Kind<bool> for Switch {
    fn parse(&self, text: &str) -> anyhow::Result<bool> {
        text.parse()
            .map_err(|_| anyhow::anyhow!("must be true or false, such as true"))
    }

    fn show(&self, value: &bool) -> Option<Value> {
        Some(Value::Boolean(*value))
    }
}

/// One of a few words.
pub(super) struct Choice<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Kind<T> for Choice<T> {
    fn parse(&self, text: &str) -> anyhow::Result<T> {
        let found = self.0.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).with_context(|| {
            let words: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
            format!("must be one of {}", words.join(", "))
        })
    }

    fn show(&self, value: &T) -> Option<Value> {
        let found = self.0.iter().find(|(_, known)| known == value);
        found.map(|(word, _)| Value::String((*word).to_owned()))
    }
}

/// A whole number within bounds.
pub(super) struct Number {
    least: u64,
    most: u64,
}

/// A maximum from which on messages name none.
const UNBOUNDED: u64 = usize::MAX as u64;

/// A number of things, at least one.
pub(super) const COUNT: Number = count_to(usize::MAX);

/// A limit, of which 0 means that there is none.
pub(super) const LIMIT: Number = Number {
    least: 0,
    most: u64::MAX,
};

/// A number of things, at least one and at most `most`.
pub(super) const fn count_to(most: usize) -> Number {
    Number {
        least: 1,
        most: most as u64,
    }
}

impl<T: Copy + TryFrom<u64> + TryInto<u64>> Kind<T> for Number {
    fn parse(&self, text: &str) -> anyhow::Result<T> {
        let Number { least, most } = *self;
        let number: Option<u64> = text.parse().ok();
        number
            .filter(|number| (least..=most).contains(number))
            .and_then(|number| T::try_from(number).ok())
            .with_context(|| match most {
                UNBOUNDED.. => format!("must be a whole number of at least {least}"),
                most => format!("must be a whole number from {least} to {most}"),
            })
    }

    fn show(&self, value: &T) -> Option<Value> {
        // TOML has no integers beyond this; such limits are none.
        let number: i64 = (*value).try_into().ok()?.try_into().unwrap_or(i64::MAX);
        Some(Value::Integer(number))
    }
}

/// A number of bytes with a minimum, such as `64MiB`.
pub(super) struct Size(pub(super) u64);

impl<T: Copy + TryFrom<u64> + TryInto<u64>> Kind<T> for Size {
    fn parse(&self, text: &str) -> anyhow::Result<T> {
        let size: ByteSize = text
            .parse()
            .map_err(|_| anyhow::anyhow!("must be a size such as 64MiB"))?;
        let size = size.as_u64();
        anyhow::ensure!(size >= self.0, "must be at least {}", in_units(self.0));
        T::try_from(size).ok().context("is too large")
    }

    fn show(&self, value: &T) -> Option<Value> {
        let bytes: u64 = (*value).try_into().ok()?;
        Some(Value::String(in_units(bytes)))
    }
}

/// A size exactly, in the largest unit that divides it.
pub(super) fn in_units(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    match unit {
        Some((unit, name)) if bytes > 0 => format!("{}{name}", bytes / unit),
        _ => format!("{bytes}B"),
    }
}

/// Units of sizes, the largest first.
const UNITS: [(u64, &str); 4] = [
    (1 << 40, "TiB"),
    (1 << 30, "GiB"),
    (1 << 20, "MiB"),
    (1 << 10, "KiB"),
];

/// A duration of at least so much, such as `30s`, `1h 30m` or `7d`.
pub(super) struct Period(pub(super) Duration);

/// Reads a duration of at least a second, such as `1h`.
pub(crate) fn duration(text: &str) -> anyhow::Result<Duration> {
    Period(Duration::from_secs(1)).parse(text)
}

/// A duration that a clock of milliseconds can measure.
pub(super) const PERIOD: Period = Period(Duration::from_millis(1));

impl Kind<Duration> for Period {
    fn parse(&self, text: &str) -> anyhow::Result<Duration> {
        let signed = parse_duration(text)
            .context("must be a duration with its unit, such as 30s, 12h or 7d")?;
        Duration::try_from(signed)
            .ok()
            .filter(|period| *period >= self.0)
            .with_context(|| format!("must be at least {:?}", self.0))
    }

    fn show(&self, value: &Duration) -> Option<Value> {
        let signed = SignedDuration::try_from(*value).unwrap_or(SignedDuration::MAX);
        Some(Value::String(format!("{signed:#}")))
    }
}

/// A duration that is kept as a number of milliseconds.
pub(super) struct Milliseconds;

impl Kind<u64> for Milliseconds {
    fn parse(&self, text: &str) -> anyhow::Result<u64> {
        Ok(PERIOD.parse(text)?.as_millis() as u64)
    }

    fn show(&self, value: &u64) -> Option<Value> {
        PERIOD.show(&Duration::from_millis(*value))
    }
}

/// A duration that is kept as a number of seconds, at least one.
pub(super) struct Seconds;

impl Kind<u64> for Seconds {
    fn parse(&self, text: &str) -> anyhow::Result<u64> {
        Ok(Period(Duration::from_secs(1)).parse(text)?.as_secs())
    }

    fn show(&self, value: &u64) -> Option<Value> {
        PERIOD.show(&Duration::from_secs(*value))
    }
}

/// A share, from 0 to 1.
pub(super) struct Share;

impl Kind<f64> for Share {
    fn parse(&self, text: &str) -> anyhow::Result<f64> {
        let share = text
            .parse()
            .ok()
            .filter(|share| (0.0..=1.0).contains(share));
        share.context("must be a number from 0 to 1, such as 0.01")
    }

    fn show(&self, value: &f64) -> Option<Value> {
        Some(Value::Float(*value))
    }
}

/// The URL of a server, without a slash at its end.
pub(super) struct WebUrl;

impl Kind<String> for WebUrl {
    fn parse(&self, text: &str) -> anyhow::Result<String> {
        let is_url = text.parse::<Uri>().is_ok_and(|url| {
            let is_web = matches!(url.scheme_str(), Some("http" | "https"));
            let has_host = url
                .authority()
                .is_some_and(|host| !host.as_str().contains('@'));
            is_web && has_host && url.query().is_none() && !text.contains('#')
        });
        anyhow::ensure!(is_url, "must be a URL such as https://push.example.com");
        Ok(text.trim_end_matches('/').to_owned())
    }

    fn show(&self, value: &String) -> Option<Value> {
        Some(Value::String(value.clone()))
    }
}

/// A value that need not be set.
pub(super) struct Optional<K>(pub(super) K);

impl<T, K: Kind<T>> Kind<Option<T>> for Optional<K> {
    fn parse(&self, text: &str) -> anyhow::Result<Option<T>> {
        self.0.parse(text).map(Some)
    }

    fn show(&self, value: &Option<T>) -> Option<Value> {
        value.as_ref().and_then(|value| self.0.show(value))
    }

    fn within(&self, value: Option<T>, folder: &Path) -> Option<T> {
        value.map(|value| self.0.within(value, folder))
    }
}

/// A value, or the word `none`.
pub(super) struct OrNone<K>(pub(super) K);

impl<T, K: Kind<T>> Kind<Option<T>> for OrNone<K> {
    fn parse(&self, text: &str) -> anyhow::Result<Option<T>> {
        match text {
            "none" => Ok(None),
            text => self.0.parse(text).map(Some),
        }
    }

    fn show(&self, value: &Option<T>) -> Option<Value> {
        match value {
            Some(value) => self.0.show(value),
            None => Some(Value::String("none".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_written_exactly() {
        for text in ["1B", "1000B", "64MiB", "1GiB", "3TiB", "1025KiB"] {
            let bytes: u64 = Size(1).parse(text).unwrap();
            assert_eq!(Size(1).show(&bytes).unwrap().as_str(), Some(text));
        }
        for period in [0, 1, 1_500, 90_000, 86_400_000].map(Duration::from_millis) {
            let any = Period(Duration::ZERO);
            let shown = any.show(&period).unwrap();
            assert_eq!(any.parse(shown.as_str().unwrap()).unwrap(), period);
        }
        assert_eq!(duration("7d").unwrap(), Duration::from_secs(7 * 86_400));
        assert!(
            duration("-1d")
                .unwrap_err()
                .to_string()
                .contains("at least")
        );
    }

    #[test]
    fn an_address_may_be_a_port_only() {
        for (text, address) in [
            ("5238", "127.0.0.1:5238"),
            (":5238", "127.0.0.1:5238"),
            ("localhost:5238", "127.0.0.1:5238"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:5238", "[::1]:5238"),
            ("[fe80::77%lo]:5238", "[fe80::77%lo]:5238"),
            ("[fe80::77%1]:5238", "[fe80::77%lo]:5238"),
        ] {
            let parsed = Address.parse(text).unwrap();
            assert_eq!(NamedZone(parsed).to_string(), address, "{text}");
        }
        for wrong in [
            "",
            "localhost",
            "::1:5238",
            "1.2.3.4",
            "65536",
            ":x",
            "http://localhost:1",
        ] {
            let error = Address.parse(wrong).unwrap_err().to_string();
            assert!(error.contains("such as 127.0.0.1:5238"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_url_is_that_of_a_server() {
        for (text, url) in [
            ("https://a.example", "https://a.example"),
            ("http://[::1]:5238/", "http://[::1]:5238"),
            ("https://a.example/push/", "https://a.example/push"),
        ] {
            assert_eq!(WebUrl.parse(text).unwrap(), url);
        }
        for wrong in [
            "",
            "a.example",
            "ftp://a.example",
            "https://",
            "https://u:p@a.example",
            "https://a.example/?x",
            "https://a.example/#x",
        ] {
            assert!(WebUrl.parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shares_are_between_0_and_1() {
        for (text, share) in [("0", 0.0), ("1", 1.0), ("0.25", 0.25), ("1e-3", 0.001)] {
            assert_eq!(Share.parse(text).unwrap(), share);
        }
        for wrong in ["", "-0.1", "1.01", "NaN", "inf", "1%", "half"] {
            assert!(Share.parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_keep_their_bounds() {
        assert!(Kind::<u32>::parse(&COUNT, "0").is_err());
        assert!(Kind::<u16>::parse(&LIMIT, "65536").is_err());
        assert!(Kind::<u16>::parse(&LIMIT, "-1").is_err());
        assert_eq!(Kind::<u16>::parse(&LIMIT, "0").unwrap(), 0);
        assert!(Kind::<usize>::parse(&count_to(3), "4").is_err());
    }
}
