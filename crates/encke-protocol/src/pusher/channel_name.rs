//! Names of channels, and what their beginnings say.

/// The name of a channel of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChannelName<'a>(&'a str);

/// The name breaks the rules of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of a channel has 1 to {CHANNEL_BYTES_MAX} of the characters A-Z a-z 0-9 _ - = @ , . ; and is not . or .."
)]
pub(super) struct BadChannelName;

impl<'a> ChannelName<'a> {
    pub(super) fn parse(name: &'a str) -> Result<Self, BadChannelName> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=@,.;".contains(&byte);
        let is_sized = (1..=CHANNEL_BYTES_MAX).contains(&name.len());
        // As segments of a stream's name these two are no names.
        match is_sized && name.bytes().all(is_allowed) && !matches!(name, "." | "..") {
            true => Ok(ChannelName(name)),
            false => Err(BadChannelName),
        }
    }

    pub(super) fn as_str(self) -> &'a str {
        self.0
    }

    /// Whether a subscription needs a signature.
    pub(super) fn is_private(self) -> bool {
        self.0.starts_with("private-") || self.is_presence()
    }

    /// Whether the channel has members.
    pub(super) fn is_presence(self) -> bool {
        self.0.starts_with("presence-")
    }

    /// Whether its events are encrypted, by keys that the server does not have.
    pub(super) fn is_encrypted(self) -> bool {
        self.0.starts_with("private-encrypted-")
    }

    /// Whether a new subscription gets the last event.
    pub(super) fn is_cache(self) -> bool {
        let kinds = [
            "cache-",
            "private-cache-",
            "private-encrypted-cache-",
            "presence-cache-",
        ];
        kinds.iter().any(|kind| self.0.starts_with(kind))
    }
}

/// Bytes of a name.
pub(super) const CHANNEL_BYTES_MAX: usize = 164;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_protocol() {
        let long = "x".repeat(CHANNEL_BYTES_MAX);
        for name in ["a", "A-z_0=@,.;", "...", "private-a", &long] {
            assert_eq!(ChannelName::parse(name).map(ChannelName::as_str), Ok(name));
        }
        let longer = "x".repeat(CHANNEL_BYTES_MAX + 1);
        for name in [
            "", ".", "..", "a/b", "a b", "a:b", "a#b", "ä", "a\n", "a%2Fb", &longer,
        ] {
            assert_eq!(ChannelName::parse(name), Err(BadChannelName), "{name}");
        }
    }

    #[test]
    fn the_beginning_says_the_kind() {
        let kinds = |name| {
            let name = ChannelName::parse(name).unwrap();
            let kinds = [
                (name.is_private(), "private"),
                (name.is_presence(), "presence"),
                (name.is_encrypted(), "encrypted"),
                (name.is_cache(), "cache"),
            ];
            let kinds = kinds.into_iter().filter(|(is, _)| *is);
            kinds.map(|(_, kind)| kind).collect::<Vec<_>>().join(" ")
        };
        for (name, expected) in [
            ("news", ""),
            ("privat-a", ""),
            ("x-private-a", ""),
            ("private-a", "private"),
            ("private-encrypted-a", "private encrypted"),
            ("private-encrypted-cache-a", "private encrypted cache"),
            ("cache-a", "cache"),
            ("private-cache-a", "private cache"),
            ("presence-a", "private presence"),
            ("presence-cache-a", "private presence cache"),
        ] {
            assert_eq!(kinds(name), expected, "{name}");
        }
    }
}
