"""The signature of a webhook's call. Needs the package `cryptography`: `pip install encke[webhooks]`."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Mapping
from typing import Any, Optional


class InvalidSignatureError(ValueError):
    """The call does not come from the server, or is too old."""


def verify_webhook(
    body: bytes,
    signature: str,
    jwks: Mapping[str, Any],
    *,
    tolerance_s: float = 300,
    now: Optional[float] = None,
) -> None:
    """Verifies the field `Webhook-Signature` of a call with the server's keys, which `Encke.jwks` gets.

    `body` is the raw body. A call whose time is more than `tolerance_s` from `now`, seconds since 1970, is refused.
    """
    # These imports are here so that the rest of the package does without them.
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    parts = (part.strip().partition("=") for part in signature.split(","))
    fields = {name: value for name, _, value in parts}
    seconds, kid = fields.get("t", ""), fields.get("kid", "")
    if not (seconds.isascii() and seconds.isdecimal()):
        raise InvalidSignatureError("the field Webhook-Signature has no time")
    key = next((key for key in jwks.get("keys", []) if key.get("kid") == kid), None)
    if key is None or key.get("kty") != "OKP" or key.get("crv") != "Ed25519":
        raise InvalidSignatureError(f"there is no key {kid!r} of Ed25519")
    try:
        public = Ed25519PublicKey.from_public_bytes(decode(key["x"]))
        public.verify(decode(fields.get("ed25519", "")), seconds.encode() + b"." + body)
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise InvalidSignatureError("the signature is not that of the body") from error
    if abs((time.time() if now is None else now) - int(seconds)) > tolerance_s:
        raise InvalidSignatureError(f"the call was signed at {seconds}")


def decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
