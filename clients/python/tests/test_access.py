"""Tokens that end and are renewed; TLS, HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import ssl
import tempfile
import threading
import time
import unittest
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from rig import PATIENCE_S, RETRY, Server

import encke

SECRET = b"a secret of the tests, which has at least 64 bytes, as HS256 may want it"
# The shortest life of a token that lets a follower connect on a busy machine.
LIFE_S = 10
RENEWALS = 2


def token(seconds: float = 3600) -> str:
    now = time.time()
    claims = {
        "iss": "https://app.example",
        "aud": "encke",
        "sub": "ann",
        "iat": int(now),
        "exp": int(now + seconds),
        "encke": {"read": ["/v1/stream/**"], "create": ["/v1/stream/**"], "append": ["/v1/stream/**"]},
    }
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = hmac.new(SECRET, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


class Tokens(unittest.TestCase):
    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        secret, config = Path(folder.name, "secret"), Path(folder.name, "encke.toml")
        secret.write_bytes(SECRET)
        config.write_text(
            '[access]\nleeway = "0s"\n[[access.issuers]]\nname = "app"\nissuer = "https://app.example"\naudience = "encke"\n'
            f'algorithms = ["HS256"]\nsecret-file = "{secret}"\n'
        )
        cls.server = Server("--config", str(config), "--admin-listen", "none")
        cls.addClassCleanup(cls.server.remove)

    def test_a_follower_renews_its_token(self) -> None:
        made: list[str] = []
        renewed = threading.Semaphore(0)

        def make() -> str:
            made.append(token(LIFE_S))
            renewed.release()
            return made[-1]

        with self.server.client(token()) as writer, self.server.client(make) as reader:
            writer.create("s", data=0)
            with reader.follow("s") as records:
                self.assertEqual(next(records).data, 0)
                self.assertTrue(renewed.acquire(timeout=PATIENCE_S))
                # The follower waits in a thread until the token has ended.
                found: list[object] = []
                thread = threading.Thread(target=lambda: found.extend(record.data for record in records))
                thread.start()
                for number in range(1, RENEWALS + 1):
                    self.assertTrue(renewed.acquire(timeout=PATIENCE_S))
                    writer.append("s", number)
                writer.close_stream("s")
                thread.join()
            self.assertEqual(found, [*range(1, RENEWALS + 1)])
            self.assertEqual(len(set(made)), len(made))

    def test_calls_renew_their_token_once(self) -> None:
        made = 0

        async def make() -> str:
            nonlocal made
            made += 1
            return "invalid" if made == 1 else token()

        async def asynchronous() -> None:
            async with self.server.async_client(make) as client:
                await client.create("calls", data=1)
                self.assertEqual((await client.read("calls")).data, [1])

        asyncio.run(asynchronous())
        self.assertEqual(made, 2)
        for refused in ("invalid", lambda: "invalid", None):
            with self.server.client(refused) as client, self.assertRaises(encke.EnckeError) as raised:
                client.read("calls")
            self.assertEqual(raised.exception.status, 401)


class Tls(unittest.TestCase):
    server: Server
    certificate: Path

    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.certificate, key = Path(folder.name, "certificate.pem"), Path(folder.name, "key.pem")
        write_certificate(cls.certificate, key)
        cls.server = Server("--tls-cert", str(cls.certificate), "--tls-key", str(key), scheme="https")
        cls.addClassCleanup(cls.server.remove)

    def test_both_versions_of_http(self) -> None:
        for http2 in (False, True):
            with self.subTest(http2=http2):
                trusted = ssl.create_default_context(cafile=str(self.certificate))
                name = f"s{http2}"
                with encke.Encke(self.server.url, verify=trusted, http2=http2, retry=RETRY) as client:
                    client.create(name)
                    with client.follow(name) as of_one, client.follow([name]) as of_several:
                        for number in range(3):
                            client.append(name, number)
                            self.assertEqual((next(of_one).data, next(of_several).data), (number, number))
                        client.close_stream(name)
                        self.assertEqual(([*of_one], [*of_several]), ([], []))
                    with client._process_session.connections.use() as http:
                        response = http.get("/v1/stream")
                    self.assertEqual(response.http_version, "HTTP/2" if http2 else "HTTP/1.1")

    def test_an_unknown_certificate_is_refused_at_once(self) -> None:
        with encke.Encke(self.server.url, retry=RETRY) as client:
            for request in (client.read, lambda name: next(client.follow(name))):
                with self.assertRaises(encke.UnreachableError) as raised:
                    request("s")
                self.assertIn("CERTIFICATE_VERIFY_FAILED", raised.exception.message)


def write_certificate(certificate: Path, key: Path) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder(name, name, private.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = builder.add_extension(addresses, critical=False)
    certificate.write_bytes(builder.sign(private, hashes.SHA256()).public_bytes(Encoding.PEM))
    key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
