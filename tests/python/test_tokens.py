"""Tokens that PyJWT makes, at the real server: every algorithm, with keys that are files in PEM form."""

import datetime
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import jwt
import requests
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENCKE_BIN", str(ROOT / "target" / "release" / "encke"))
API_KEY = "encke_a-key-for-the-tests-of-tokens-0123456789"
AUDIENCE = "encke"
UNSIGNED = "none"

# By issuer: its algorithms, and the key that signs its tokens.
ISSUERS = {
    "secret": (["HS256", "HS384", "HS512"], secrets.token_hex(64)),
    "rsa": (["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"], rsa.generate_private_key(65537, 2048)),
    "p256": (["ES256"], ec.generate_private_key(ec.SECP256R1())),
    "p384": (["ES384"], ec.generate_private_key(ec.SECP384R1())),
    "ed25519": (["EdDSA"], ed25519.Ed25519PrivateKey.generate()),
}

ALGORITHMS = [(name, algorithm) for name, (algorithms, _) in ISSUERS.items() for algorithm in algorithms]


def issuer(name):
    return f"https://{name}.example"


def public_pem(key):
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def later(seconds):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def claims(name, **other):
    """The claims of a good token; `None` leaves one out."""
    all_claims = {
        "iss": issuer(name),
        "aud": AUDIENCE,
        "sub": "ann",
        "iat": later(0),
        "exp": later(3600),
        "encke": {"read": ["/v1/stream/**"]},
        **other,
    }
    return {claim: value for claim, value in all_claims.items() if value is not None}


# Claims that are wrong in one respect, with the code of the refusal.
WRONG_CLAIMS = {
    "wrong audience": ({"aud": "other"}, "audience"),
    "several wrong audiences": ({"aud": ["other", "encke/"]}, "audience"),
    "no audience": ({"aud": None}, "claim"),
    "expired": ({"exp": later(-600)}, "expired"),
    "no end": ({"exp": None}, "claim"),
    "not yet valid": ({"nbf": later(600)}, "not_yet_valid"),
    "issued in the future": ({"iat": later(600)}, "not_yet_valid"),
    "wrong issuer": ({"iss": "https://unknown.example"}, "unknown_issuer"),
    "no issuer": ({"iss": None}, "unknown_issuer"),
}


class Server:
    """The real binary with access control, and one stream with the message 1."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="encke-python-")
        config = Path(self.folder, "encke.toml")
        config.write_text("\n".join(self.tables()))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ENCKE_")}
        data = Path(self.folder, "data")
        listen = ["--listen", "127.0.0.1:0", "--admin-listen", "none", "--tuning", f"audit-log-file={self.folder}/audit"]
        self.process = subprocess.Popen(
            [BINARY, "serve", *listen, "--log", "warn", "--data", data, "--config", config],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self.process.stdout.readline()
        self.url = re.fullmatch(r"listening on (http://\S+)\n", line).group(1) + "/v1/stream/a"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {API_KEY}"}
        created = requests.put(self.url, headers=headers, data="[1]", timeout=10)
        assert created.status_code == 201, created.text
        self.session = requests.Session()

    def tables(self):
        """The configuration: each issuer has its key in a file."""
        digest = hashlib.sha256(API_KEY.encode()).hexdigest()
        yield f'[[access.api-keys]]\nname = "backend"\nsha256 = "{digest}"'
        yield 'grants = [{ actions = ["create"], paths = ["/v1/stream/**"] }]\n'
        for name, (algorithms, key) in ISSUERS.items():
            of_secret = isinstance(key, str)
            path = Path(self.folder, name)
            path.write_bytes(key.encode() if of_secret else public_pem(key))
            source = "secret-file" if of_secret else "public-key-file"
            yield f'[[access.issuers]]\nissuer = "{issuer(name)}"\naudience = "{AUDIENCE}"'
            yield f'algorithms = {json.dumps(algorithms)}\n{source} = "{path}"\n'

    def read(self, token):
        """Reads the stream: the status, and the messages or the code of the error."""
        response = self.session.get(self.url, headers={"Authorization": f"Bearer {token}"}, timeout=10)
        body = response.json()
        return response.status_code, body if response.ok else body["error"]["code"]

    def remove(self):
        self.session.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.remove)

    def test_every_algorithm_is_accepted(self):
        for name, algorithm in ALGORITHMS:
            _, key = ISSUERS[name]
            for headers in ({}, {"kid": "any", "typ": "at+jwt"}):
                with self.subTest(algorithm, headers=headers):
                    token = jwt.encode(claims(name), key, algorithm, headers)
                    self.assertEqual(self.server.read(token), (200, [1]))

    def test_wrong_claims_are_refused(self):
        for name, algorithm in ALGORITHMS:
            _, key = ISSUERS[name]
            for what, (wrong, code) in WRONG_CLAIMS.items():
                with self.subTest(algorithm, what=what):
                    token = jwt.encode(claims(name, **wrong), key, algorithm)
                    self.assertEqual(self.server.read(token), (401, code))

    def test_alg_none_is_refused(self):
        for name in ISSUERS:
            with self.subTest(name):
                token = jwt.encode(claims(name), None, UNSIGNED)
                self.assertEqual(self.server.read(token), (401, "algorithm"))

    def test_the_token_of_one_issuer_is_none_of_another(self):
        for name, algorithm in ALGORITHMS:
            _, key = ISSUERS[name]
            for other, (algorithms, _) in ISSUERS.items():
                if other != name:
                    with self.subTest(algorithm, issuer=other):
                        self.assertNotIn(algorithm, algorithms)
                        token = jwt.encode(claims(other), key, algorithm)
                        self.assertEqual(self.server.read(token), (401, "algorithm"))

    def test_another_key_of_the_same_kind_is_refused(self):
        others = {
            "secret": secrets.token_hex(64),
            "rsa": rsa.generate_private_key(65537, 2048),
            "p256": ec.generate_private_key(ec.SECP256R1()),
            "p384": ec.generate_private_key(ec.SECP384R1()),
            "ed25519": ed25519.Ed25519PrivateKey.generate(),
        }
        for name, algorithm in ALGORITHMS:
            with self.subTest(algorithm):
                token = jwt.encode(claims(name), others[name], algorithm)
                self.assertEqual(self.server.read(token), (401, "signature"))

    def test_a_public_key_is_no_secret_of_hs256(self):
        # PyJWT refuses to sign with the text of a key; an attacker does not.
        class Forger(jwt.algorithms.HMACAlgorithm):
            def prepare_key(self, key):
                return key

        forger = jwt.PyJWS()
        forger.unregister_algorithm("HS256")
        forger.register_algorithm("HS256", Forger(Forger.SHA256))
        for name, (_, key) in ISSUERS.items():
            if name == "secret":
                continue
            der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
            for secret in (public_pem(key), public_pem(key).strip(), der):
                with self.subTest(name, secret=secret):
                    times = {claim: int(claims(name)[claim].timestamp()) for claim in ("iat", "exp")}
                    payload = json.dumps({**claims(name), **times}).encode()
                    token = forger.encode(payload, secret, "HS256")
                    self.assertEqual(self.server.read(token), (401, "algorithm"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
