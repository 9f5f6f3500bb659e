"""An adapter of clients/python for the client conformance suite: a line of JSON for each command, and one for its result."""

from __future__ import annotations

import base64
import json
import sys
from typing import Any, Callable

import httpx

import encke

# How long a call may repeat its request.
RETRY = encke.Retry(first_s=0.05, most_s=1.0, give_up_s=8.0)

Members = dict[str, Any]


class Unsupported(Exception):
    """The client has nothing like it."""


class Adapter:
    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._producers: dict[tuple[object, ...], encke.Producer] = {}
        self.commands: dict[str, Callable[..., Members]] = {
            "create": self.create,
            "connect": self.head,
            "append": self.append,
            "idempotent-append": self.idempotent_append,
            "idempotent-append-batch": self.batch,
            "idempotent-close": self.close,
            "idempotent-detach": lambda **_: {"status": 200},
            "close": self.close,
            "read": self.read,
            "head": self.head,
            "delete": self.delete,
            "shutdown": dict,
        }

    def init(self, serverUrl: str, **_: object) -> Members:
        self._client = encke.Encke(serverUrl, timeout_s=RETRY.give_up_s, retry=RETRY)
        return {"clientName": "encke-python", "clientVersion": "0.1.0", "features": {}}

    def create(
        self, path: str, contentType: str = "application/octet-stream", headers: object = None, data: str | None = None, **more: Any
    ) -> Members:
        if headers:
            raise Unsupported("fields of a creation")
        self._types[path] = contentType
        options = {"ttl_s": more.get("ttlSeconds"), "expires_at": more.get("expiresAt"), "closed": more.get("closed") or False}
        created = self._client.create(path[1:], contentType, None if data is None else self._data(path, data), **options)
        return {"status": 201 if created else 200}

    def append(self, path: str, data: str, binary: bool = False, seq: object = None, headers: object = None, **_: object) -> Members:
        if seq is not None or headers:
            raise Unsupported("such option of an append")
        return self._append(path, data, None, binary)

    def idempotent_append(self, path: str, data: str, producerId: str, epoch: int, autoClaim: bool = False, **_: object) -> Members:
        if autoClaim:
            raise Unsupported("automatic epoch")
        return self._append(path, data, self._producer(path, producerId, epoch))

    def batch(self, path: str, items: list[str], producerId: str, epoch: int, autoClaim: bool = False, **_: object) -> Members:
        if autoClaim:
            raise Unsupported("automatic epoch")
        # A batch is of a writer that begins anew.
        producer = self._producers[path, producerId, epoch] = encke.Producer(producerId, epoch)
        self._client.append_all(path[1:], [self._data(path, item) for item in items], producer=producer, content_type=self._types.get(path))
        return {"status": 200}

    def close(self, path: str, data: str | None = None, **_: object) -> Members:
        if data is not None:
            self._append(path, data, None)
        return {"status": 200, "finalOffset": self._client.close_stream(path[1:])}

    def read(self, path: str, offset: str | None = None, live: object = None, **_: object) -> Members:
        if live:
            raise Unsupported("event stream of one stream, and no long poll")
        page = self._client.read(path[1:], offset or encke.BEGINNING)
        data = json.dumps(page.data, separators=(",", ":"), ensure_ascii=False) if isinstance(page.data, list) else page.text
        chunks = [{"data": data, "offset": page.next_offset}] if page.data else []
        return {"status": 200, "chunks": chunks, "offset": page.next_offset, "upToDate": True, "streamClosed": page.closed}

    def head(self, path: str, **_: object) -> Members:
        info = self._client.head(path[1:])
        self._types[path] = info.content_type
        return {"status": 200, "offset": info.next_offset, "contentType": info.content_type, "streamClosed": info.closed}

    def delete(self, path: str, **_: object) -> Members:
        self._client.delete(path[1:])
        return {"status": 200}

    def _append(self, path: str, data: str, producer: encke.Producer | None, binary: bool = False) -> Members:
        value = self._data(path, data, binary)
        messages = value if isinstance(value, list) else [value]
        end = self._client.append_all(path[1:], messages, producer=producer, content_type=self._types.get(path))
        if end is None:
            raise ValueError("an array of JSON without elements")
        return {"status": 204 if end.repeated else 200, "offset": end.next_offset, "duplicate": end.repeated}

    def _producer(self, path: str, id: str, epoch: int) -> encke.Producer:
        return self._producers.setdefault((path, id, epoch), encke.Producer(id, epoch))

    def _data(self, path: str, data: str, binary: bool = False) -> Any:
        if binary:
            return base64.b64decode(data)
        return json.loads(data) if self._types.get(path, "").startswith("application/json") else data


def refusal(command: str, error: Exception) -> Members:
    members: Members = {"type": "error", "success": False, "commandType": command, "errorCode": "INTERNAL_ERROR", "message": str(error)}
    if isinstance(error, Unsupported):
        members.update(errorCode="NOT_SUPPORTED")
    elif isinstance(error, json.JSONDecodeError):
        members.update(errorCode="PARSE_ERROR")
    elif isinstance(error, encke.UnreachableError):
        members.update(errorCode="NETWORK_ERROR")
    elif isinstance(error, encke.EnckeError):
        closed = "STREAM_CLOSED" if isinstance(error, encke.StreamClosedError) else "CONFLICT"
        codes = {200: "PARSE_ERROR", 400: "INVALID_OFFSET", 404: "NOT_FOUND", 409: closed}
        members.update(status=error.status or None, errorCode=codes.get(error.status, "UNEXPECTED_STATUS"))
    return members


def at_root(build: Callable[..., httpx.Request]) -> Callable[..., httpx.Request]:
    """The reference server has its streams at the root."""

    def request(client: httpx.Client, method: str, url: Any, **more: Any) -> httpx.Request:
        return build(client, method, str(url).replace("/v1/stream/", "/"), **more)

    return request


def main() -> None:
    httpx.Client.build_request = at_root(httpx.Client.build_request)  # type: ignore[method-assign]
    adapter = Adapter()
    for line in sys.stdin:
        command = {name: value for name, value in json.loads(line).items() if value is not None}
        type = command.pop("type")
        try:
            call = adapter.init if type == "init" else adapter.commands.get(type)
            if call is None:
                raise Unsupported(f"the client has no {type}")
            result = {"type": type, "success": True, **call(**command)}
        except Exception as error:
            result = refusal(type, error)
        print(json.dumps(result), flush=True)


main()
