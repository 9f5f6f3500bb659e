"""The library pusher of Python as a server of the Pusher protocol, unchanged. Clients are plain WebSockets."""

import asyncio
import base64
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import nacl.secret
import pusher
import pusher.aiohttp
import pusher.errors
import websockets.sync.client

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ENCKE_BIN", str(ROOT / "target" / "release" / "encke"))
APP = {"app_id": "31", "key": "app-key", "secret": "a secret of the app 31"}
DISABLED = {"app_id": "32", "key": "disabled-key", "secret": "a secret of the app 32"}
EVENT_BYTES_MAX = 10_240
# How long anything may take, on a busy machine.
TIMEOUT_S = 60


def table(app, **settings):
    """An entry of `[[pusher.apps]]`."""
    named = {"id": app["app_id"], "key": app["key"], "secret": app["secret"], **settings}
    return "[[pusher.apps]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in named.items())


class Server:
    """The real binary with two apps, of which one is disabled."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="encke-python-")
        config = Path(self.folder, "encke.toml")
        limits = {"event-bytes-max": EVENT_BYTES_MAX}
        config.write_text(table(APP, **limits) + table(DISABLED, enabled=False), encoding="utf-8")
        config.chmod(0o600)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ENCKE_")}
        data = Path(self.folder, "data")
        listen = ["--listen", "127.0.0.1:0", "--tuning", f"audit-log-file={self.folder}/audit"]
        self.process = subprocess.Popen(
            [BINARY, "serve", *listen, "--log", "warn", "--data", data, "--config", config],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        line = self.process.stdout.readline()
        self.host, self.port = re.fullmatch(r"listening on http://(\S+):(\d+)\n", line).groups()

    def remove(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Client:
    """A connection of a client, with its socket id."""

    def __init__(self, socket):
        self.socket = socket
        self.socket_id = self.receive("pusher:connection_established")["socket_id"]

    def send(self, event, data):
        self.socket.send(json.dumps({"event": event, "data": data}))

    def message(self):
        """The next message of the server."""
        return json.loads(self.socket.recv(timeout=TIMEOUT_S))

    def receive(self, event, channel=None):
        """The data of the next message, which is that event."""
        message = self.message()
        assert (message["event"], message.get("channel")) == (event, channel), message
        return decoded(message["data"])

    def subscribe(self, channel, authorisation=None):
        """Subscribes, and waits for the confirmation; returns its data."""
        self.send("pusher:subscribe", {"channel": channel, **(authorisation or {})})
        return self.receive("pusher_internal:subscription_succeeded", channel)

    def close(self):
        self.socket.close()


def decoded(data):
    """What the library has sent, as clients take it: a string is text, or the JSON of anything else."""
    if isinstance(data, str):
        with contextlib.suppress(ValueError):
            return json.loads(data)
    return data


class PusherLibrary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.server.remove)
        cls.library = cls.library_for(APP)

    @classmethod
    def library_for(cls, app, **options):
        master_key = base64.b64encode(bytes(range(32))).decode()
        return pusher.Pusher(
            **app,
            ssl=False,
            host=cls.server.host,
            port=int(cls.server.port),
            timeout=TIMEOUT_S,
            encryption_master_key_base64=master_key,
            **options,
        )

    def connect(self):
        url = f"ws://{self.server.host}:{self.server.port}/app/{APP['key']}?protocol=7&client=test&version=1"
        connections = contextlib.ExitStack()
        self.addCleanup(connections.close)
        return Client(connections.enter_context(websockets.sync.client.connect(url, open_timeout=TIMEOUT_S)))

    def join(self, channel, user):
        """A client that is a member of a presence channel, with what it got when it subscribed."""
        client = self.connect()
        member = {"user_id": user, "user_info": {"name": user.upper()}}
        presence = client.subscribe(channel, self.library.authenticate(channel, client.socket_id, member))["presence"]
        return client, presence

    def test_events_reach_subscribers_in_order(self):
        client = self.connect()
        for channel in ["events-a", "events-b"]:
            client.subscribe(channel)
        self.assertEqual(self.library.trigger("events-a", "said", {"text": "hällo"}), {})
        self.assertEqual(self.library.trigger("events-a", "said", "plain text"), {})
        self.assertEqual(client.receive("said", "events-a"), {"text": "hällo"})
        self.assertEqual(client.receive("said", "events-a"), "plain text")
        self.library.trigger(["events-a", "events-b"], "both", [1, 2])
        both = {message["channel"]: decoded(message["data"]) for message in (client.message(), client.message())}
        self.assertEqual(both, {"events-a": [1, 2], "events-b": [1, 2]})

    def test_the_connection_that_causes_an_event_does_not_get_it(self):
        causer, other = self.connect(), self.connect()
        for client in (causer, other):
            client.subscribe("caused")
        self.library.trigger("caused", "said", 1, causer.socket_id)
        self.library.trigger("caused", "said", 2)
        self.assertEqual([other.receive("said", "caused") for _ in range(2)], [1, 2])
        self.assertEqual(causer.receive("said", "caused"), 2)

    def test_the_events_of_a_batch_reach_their_channels(self):
        causer, other = self.connect(), self.connect()
        for client in (causer, other):
            client.subscribe("batch")
        batch = [
            {"channel": "batch", "name": "first", "data": {"n": 1}, "socket_id": causer.socket_id},
            {"channel": "batch-unheard", "name": "unheard", "data": 0},
            {"channel": "batch", "name": "second", "data": "text"},
        ]
        self.assertEqual(self.library.trigger_batch(batch), {})
        self.assertEqual(other.receive("first", "batch"), {"n": 1})
        self.assertEqual(other.receive("second", "batch"), "text")
        self.assertEqual(causer.receive("second", "batch"), "text")

    def test_a_private_channel_takes_the_signature_for_its_socket(self):
        client, other = self.connect(), self.connect()
        stolen = self.library.authenticate("private-orders", other.socket_id)
        client.send("pusher:subscribe", {"channel": "private-orders", **stolen})
        refused = client.receive("pusher:subscription_error", "private-orders")
        self.assertEqual((refused["type"], refused["status"]), ("AuthError", 401))
        client.subscribe("private-orders", self.library.authenticate("private-orders", client.socket_id))
        self.library.trigger("private-orders", "placed", {"id": 7})
        self.assertEqual(client.receive("placed", "private-orders"), {"id": 7})

    def test_an_encrypted_channel_is_read_with_the_shared_secret(self):
        client = self.connect()
        channel = "private-encrypted-notes"
        authorisation = self.library.authenticate(channel, client.socket_id)
        client.subscribe(channel, {"auth": authorisation["auth"]})
        self.library.trigger(channel, "noted", {"secret": "words"})
        noted = client.receive("noted", channel)
        box = nacl.secret.SecretBox(base64.b64decode(authorisation["shared_secret"]))
        text = box.decrypt(base64.b64decode(noted["ciphertext"]), base64.b64decode(noted["nonce"]))
        self.assertEqual(json.loads(text), {"secret": "words"})

    def test_the_members_of_a_presence_channel_are_known(self):
        channel = "presence-room"
        ann, alone = self.join(channel, "ann")
        self.assertEqual(alone, {"count": 1, "ids": ["ann"], "hash": {"ann": {"name": "ANN"}}})
        bob, both = self.join(channel, "bob")
        self.assertEqual((both["count"], sorted(both["ids"])), (2, ["ann", "bob"]))
        added = ann.receive("pusher_internal:member_added", channel)
        self.assertEqual(added, {"user_id": "bob", "user_info": {"name": "BOB"}})
        page, _ = self.join(channel, "bob")
        users = self.library.users_info(channel)["users"]
        self.assertEqual(sorted(user["id"] for user in users), ["ann", "bob"])
        info = self.library.channel_info(channel, ["user_count", "subscription_count"])
        self.assertEqual(info, {"occupied": True, "user_count": 2, "subscription_count": 3})
        for client in (page, bob):
            client.close()
        self.assertEqual(ann.receive("pusher_internal:member_removed", channel)["user_id"], "bob")
        self.assertEqual(self.library.users_info(channel), {"users": [{"id": "ann"}]})

    def test_channels_are_listed_while_they_have_subscribers(self):
        client = self.connect()
        for channel in ["listed-a", "listed-b"]:
            client.subscribe(channel)
        _member, _ = self.join("presence-listed", "ann")
        self.assertEqual(self.library.channels_info("listed-"), {"channels": {"listed-a": {}, "listed-b": {}}})
        everything = self.library.channels_info()["channels"]
        self.assertLessEqual({"listed-a", "listed-b", "presence-listed"}, everything.keys())
        counted = self.library.channels_info("presence-listed", ["user_count"])
        self.assertEqual(counted, {"channels": {"presence-listed": {"user_count": 1}}})
        client.send("pusher:unsubscribe", {"channel": "listed-b"})
        # A subscription is confirmed behind it.
        client.subscribe("listed-c")
        self.assertEqual(self.library.channels_info("listed-"), {"channels": {"listed-a": {}, "listed-c": {}}})
        self.assertEqual(self.library.channel_info("listed-b"), {"occupied": False})

    def test_a_user_gets_events_of_its_own(self):
        ann, bob = self.connect(), self.connect()
        for client, user in [(ann, "ann"), (bob, "bob")]:
            client.send("pusher:signin", self.library.authenticate_user(client.socket_id, {"id": user}))
            self.assertEqual(decoded(client.receive("pusher:signin_success")["user_data"]), {"id": user})
        for user in ["ann", "bob"]:
            self.library.send_to_user(user, "invited", {"user": user})
        for client, user in [(ann, "ann"), (bob, "bob")]:
            self.assertEqual(client.receive("invited", f"#server-to-user-{user}"), {"user": user})

    def test_each_http_library_signs_what_it_sends(self):
        client = self.connect()
        client.subscribe("backends")
        library = self.library_for(APP, backend=pusher.aiohttp.AsyncIOBackend)

        async def requests():
            await library.trigger("backends", "said", "asynchronously")
            return await library.channels_info("backends", ["subscription_count"])

        self.assertEqual(asyncio.run(requests()), {"channels": {"backends": {"subscription_count": 1}}})
        self.assertEqual(client.receive("said", "backends"), "asynchronously")

    def test_refusals_are_the_errors_of_the_library(self):
        other_secret = self.library_for({**APP, "secret": "another secret of the app"})
        with self.assertRaisesRegex(pusher.errors.PusherBadAuth, "auth_signature"):
            other_secret.trigger("refused", "said", 1)
        with self.assertRaisesRegex(pusher.errors.PusherBadAuth, "auth_signature"):
            other_secret.channels_info()
        with self.assertRaisesRegex(pusher.errors.PusherBadAuth, "auth_key"):
            self.library_for({**APP, "key": "another-key"}).trigger("refused", "said", 1)
        with self.assertRaisesRegex(pusher.errors.PusherForbidden, "app_disabled"):
            self.library_for(DISABLED).trigger("refused", "said", 1)
        with self.assertRaisesRegex(pusher.errors.PusherBadRequest, "presence"):
            self.library.users_info("refused")
        with self.assertRaisesRegex(pusher.errors.PusherBadStatus, "^413: "):
            self.library.trigger("refused", "said", "x" * (EVENT_BYTES_MAX + 1))
        self.assertEqual(self.library.trigger("refused", "said", "x" * EVENT_BYTES_MAX), {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
