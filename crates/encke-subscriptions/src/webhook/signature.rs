//! The signature of calls, and the document by which receivers check it.

use std::fmt;

use aws_lc_rs::digest;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use encke_clock::WallTime;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The key that signs calls (Ed25519).
pub struct WebhookKey {
    pair: Ed25519KeyPair,
    public: PublicWebhookKey,
}

/// The public part of a key that signs calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicWebhookKey {
    /// Its name: `ds_` and the thumbprint of the key (RFC 7638).
    pub kid: Box<str>,
    /// The key in base64url.
    pub x: Box<str>,
}

/// A body with its signature.
pub struct SignedBody {
    field: String,
    /// The time and the body: Ed25519 signs a message in one piece, and a body can have megabytes.
    signed: Vec<u8>,
    body_from: usize,
}

impl WebhookKey {
    /// The key of that seed.
    pub fn of(seed: &[u8; 32]) -> WebhookKey {
        let pair =
            Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are the seed of a key");
        let x = URL_SAFE_NO_PAD.encode(pair.public_key());
        // The members in the order of their names, without space.
        let members = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
        let thumbprint = digest::digest(&digest::SHA256, members.as_bytes());
        let kid = format!("ds_{}", URL_SAFE_NO_PAD.encode(thumbprint));
        WebhookKey {
            pair,
            public: PublicWebhookKey {
                kid: kid.into(),
                x: x.into(),
            },
        }
    }

    /// The public part.
    pub fn public(&self) -> &PublicWebhookKey {
        &self.public
    }

    /// Signs a body that is sent at that time.
    pub fn sign(&self, at: WallTime, write_body: impl FnOnce(&mut Vec<u8>)) -> SignedBody {
        let seconds = (at.as_ms() / 1_000).to_string();
        let mut signed = format!("{seconds}.").into_bytes();
        let body_from = signed.len();
        write_body(&mut signed);
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(&signed));
        SignedBody {
            field: format!("t={seconds},kid={},ed25519={signature}", self.public.kid),
            signed,
            body_from,
        }
    }
}

impl SignedBody {
    /// The value of the field `Webhook-Signature`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The body.
    pub fn body(&self) -> &[u8] {
        &self.signed[self.body_from..]
    }
}

/// Messages and logs must not show it.
impl fmt::Debug for WebhookKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebhookKey").field(&self.public.kid).finish()
    }
}

/// The document with the public keys (`application/jwk-set+json`, RFC 7517 and 8037).
pub fn jwk_set(keys: &[PublicWebhookKey]) -> String {
    let keys: Vec<_> = keys
        .iter()
        .map(|PublicWebhookKey { kid, x }| {
            json!({
                "kty": "OKP", "crv": "Ed25519", "x": x, "kid": kid, "use": "sig", "alg": "EdDSA",
            })
        })
        .collect();
    json!({ "keys": keys }).to_string()
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    /// The key of RFC 8037, appendix A.
    const SEED: &str = "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A";

    fn key() -> WebhookKey {
        let seed = URL_SAFE_NO_PAD.decode(SEED).unwrap();
        WebhookKey::of(&seed.try_into().unwrap())
    }

    #[test]
    fn a_key_is_named_by_its_thumbprint() {
        let public = key().public().clone();
        assert_eq!(&*public.x, "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        assert_eq!(
            &*public.kid,
            "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
        );
    }

    #[test]
    fn a_receiver_can_check_the_signature() {
        let key = key();
        let body = br#"{"wake_id":"w_1"}"#;
        let at = WallTime::from_ms(1_700_000_000_999);
        let signed = key.sign(at, |bytes| bytes.extend_from_slice(body));
        assert_eq!(signed.body(), body);
        let signature = signed
            .field()
            .strip_prefix(&format!("t=1700000000,kid={},ed25519=", key.public().kid))
            .unwrap();
        assert!(!signature.contains('='));
        let signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
        let public = URL_SAFE_NO_PAD.decode(&*key.public().x).unwrap();
        let verifier = UnparsedPublicKey::new(&ED25519, public);
        let verify = |signed: &[u8]| verifier.verify(signed, &signature).is_ok();
        assert!(verify(&[b"1700000000.", &body[..]].concat()));
        assert!(!verify(&[b"1700000001.", &body[..]].concat()));
        assert!(!verify(b"1700000000.{}"));
    }

    #[test]
    fn the_document_has_the_keys() {
        let set = jwk_set(&[key().public().clone()]);
        let set: serde_json::Value = serde_json::from_str(&set).unwrap();
        let expected = json!({
            "kty": "OKP",
            "crv": "Ed25519",
            "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo",
            "kid": "ds_kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k",
            "use": "sig",
            "alg": "EdDSA",
        });
        assert_eq!(set["keys"][0], expected);
        assert_eq!(jwk_set(&[]), r#"{"keys":[]}"#);
    }

    #[test]
    fn what_is_secret_is_not_shown() {
        let shown = format!("{:?}", key());
        assert!(shown.contains("ds_") && shown.len() < 80, "{shown}");
    }
}
