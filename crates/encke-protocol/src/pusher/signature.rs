//! Signatures of an app: HMAC-SHA256 with its secret, in hexadecimal digits.

use std::fmt::Write;

use aws_lc_rs::{constant_time, hmac};

use super::settings::AppSecret;
use super::socket_id::SocketId;

/// The secret of an app, ready to check signatures.
#[derive(Debug)]
pub(super) struct AppSigner(hmac::Key);

impl AppSigner {
    pub(super) fn new(secret: &AppSecret) -> Self {
        let secret = secret.expose().as_bytes();
        AppSigner(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Whether a signature is that of a text. The comparison takes the same time wherever they differ.
    pub(super) fn verifies(&self, text: &str, signature: &str) -> bool {
        let signature = decode_hex(signature);
        signature.is_some_and(|tag| hmac::verify(&self.0, text.as_bytes(), &tag).is_ok())
    }

    /// Whether a subscription was authorised: `auth` is the app's key, a colon and the signature of the socket and the channel, and of
    /// `channel_data` exactly as the client sends it.
    pub(super) fn authorises(
        &self,
        key: &str,
        auth: &str,
        (socket, channel): (SocketId, &str),
        channel_data: Option<&str>,
    ) -> bool {
        let Some((named, signature)) = auth.split_once(':') else {
            return false;
        };
        // Neither a socket nor a channel holds a colon, so that a text has one meaning.
        let text = match channel_data {
            Some(data) => format!("{socket}:{channel}:{data}"),
            None => format!("{socket}:{channel}"),
        };
        named == key && self.verifies(&text, signature)
    }

    /// Whether a client may sign in as the user that `user_data` names: `auth` is the app's key, a colon and the signature of the socket and
    /// of `user_data` exactly as the client sends it.
    pub(super) fn authorises_user(
        &self,
        key: &str,
        auth: &str,
        socket: SocketId,
        user_data: &str,
    ) -> bool {
        // No channel has an empty name, so that no signature of a channel is good for it.
        let text = format!("{socket}::user::{user_data}");
        auth.split_once(':')
            .is_some_and(|(named, signature)| named == key && self.verifies(&text, signature))
    }

    /// The first digits of the signature of a text: 64 bits, which can only be guessed at the server.
    pub(super) fn short(&self, text: impl AsRef<[u8]>) -> String {
        let mut signature = self.sign(text);
        signature.truncate(SHORT_DIGITS);
        signature
    }

    /// The same for a text that comes with these digits: whether they are right. The comparison takes the same time wherever they differ.
    pub(super) fn verifies_short(&self, text: impl AsRef<[u8]>, digits: &str) -> bool {
        let short = self.short(text);
        constant_time::verify_slices_are_equal(short.as_bytes(), digits.as_bytes()).is_ok()
    }

    /// The signature of a text.
    pub(super) fn sign(&self, text: impl AsRef<[u8]>) -> String {
        encode_hex(hmac::sign(&self.0, text.as_ref()).as_ref())
    }
}

/// The bytes of a signature. `None`: it is no signature of HMAC-SHA256.
fn decode_hex(text: &str) -> Option<[u8; TAG_BYTES]> {
    let text: &[u8; 2 * TAG_BYTES] = text.as_bytes().try_into().ok()?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut tag = [0; TAG_BYTES];
    for (byte, digits) in tag.iter_mut().zip(text.chunks_exact(2)) {
        // Two digits fit.
        *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
    }
    Some(tag)
}

/// Bytes in hexadecimal digits.
pub(super) fn encode_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        // A text takes all that is written.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Digits of a short signature.
const SHORT_DIGITS: usize = 16;

/// Bytes of a signature.
const TAG_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn signer() -> AppSigner {
        AppSigner::new(&"7ad3773142a6692b25b8".into())
    }

    /// The examples of the documentation of Channels (Authenticating users, Worked example).
    #[test]
    fn the_examples_of_the_protocol_are_authorised() {
        let socket: SocketId = "1234.1234".parse().unwrap();
        let key = "278d425bdf160c739803";
        let auth =
            format!("{key}:58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4");
        let authorises = |auth: &str, channel: &str, data| {
            signer().authorises(key, auth, (socket, channel), data)
        };
        assert!(authorises(&auth, "private-foobar", None));
        assert!(authorises(
            &auth.replace("58df", "58DF"),
            "private-foobar",
            None
        ));
        let data = "{\"user_id\":10,\"user_info\":{\"name\":\"Mr. Channels\"}}";
        let with_data = signer().sign(format!("1234.1234:private-foobar:{data}"));
        let with_data = format!("{key}:{with_data}");
        assert!(authorises(&with_data, "private-foobar", Some(data)));
        for (auth, channel, data) in [
            // Of another channel, another socket, and a channel whose name the data continues.
            (&*auth, "private-foobaz", None),
            (&*with_data, "private-foobar", None),
            (&auth, "private-foobar", Some("")),
            (&with_data, "private-foobar", Some("{}")),
            // Other forms.
            (&auth[..auth.len() - 2], "private-foobar", None),
            (&auth[1..], "private-foobar", None),
            ("", "private-foobar", None),
            (key, "private-foobar", None),
            (&auth.replace(key, "another-key"), "private-foobar", None),
            (&auth.replace("58df", "58d\u{e9}"), "private-foobar", None),
        ] {
            assert!(
                !authorises(auth, channel, data),
                "{auth} {channel} {data:?}"
            );
        }
        let other: SocketId = "1234.1235".parse().unwrap();
        assert!(!signer().authorises(key, &auth, (other, "private-foobar"), None));
        let another = AppSigner::new(&"7ad3773142a6692b25b9".into());
        assert!(!another.authorises(key, &auth, (socket, "private-foobar"), None));
    }
}
