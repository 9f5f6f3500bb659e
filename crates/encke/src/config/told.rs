//! A setting as somebody told it, and the rules it has to keep.

use std::fmt::Display;
use std::time::Duration;

use anyhow::Context;
use bytesize::ByteSize;
use encke_net::Networks;
use jiff::SignedDuration;

/// A setting that was given, with the name of its field for what is said about it.
pub(super) struct Told<T> {
    pub(super) name: &'static str,
    pub(super) value: T,
}

impl<T: PartialOrd + From<u8> + Display> Told<T> {
    /// A number of things, of which there must be one.
    pub(super) fn count(self) -> anyhow::Result<T> {
        anyhow::ensure!(
            self.value >= T::from(1),
            "{} must be at least 1",
            self.flag()
        );
        Ok(self.value)
    }

    /// A number of things that some part of Encke can't have more of.
    pub(super) fn count_up_to(self, most: T) -> anyhow::Result<T> {
        let flag = self.flag();
        let value = self.count()?;
        anyhow::ensure!(value <= most, "{flag} must be at most {most}");
        Ok(value)
    }
}

impl Told<ByteSize> {
    /// Bytes, in the type of whoever counts them.
    pub(super) fn size<T: TryFrom<u64>>(self, least: u64) -> anyhow::Result<T> {
        let flag = self.flag();
        let bytes = self.value.as_u64();
        anyhow::ensure!(
            bytes >= least,
            "{flag} must be at least {}",
            ByteSize(least)
        );
        T::try_from(bytes)
            .ok()
            .with_context(|| format!("{flag} is more than can be counted: {}", self.value))
    }
}

impl Told<SignedDuration> {
    /// A time that a clock of milliseconds can tell from none.
    pub(super) fn duration(self) -> anyhow::Result<Duration> {
        self.duration_from(Duration::from_millis(1))
    }

    /// A time of at least so much.
    pub(super) fn duration_from(self, least: Duration) -> anyhow::Result<Duration> {
        Duration::try_from(self.value)
            .ok()
            .filter(|value| *value >= least)
            .with_context(|| format!("{} must be at least {least:?}", self.flag()))
    }
}

impl Told<String> {
    /// Networks of clients.
    pub(super) fn networks(self) -> anyhow::Result<Networks> {
        self.value
            .parse()
            .with_context(|| format!("{} is wrong", self.flag()))
    }
}

impl<T> Told<T> {
    fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}
