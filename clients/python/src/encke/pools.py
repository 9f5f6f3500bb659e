"""Requests for pools: jobs of those who post them, and attempts of workers."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Optional, cast

from .errors import PicklableError
from .steps import FOREVER, Answer, Call, Request, path
from .streams import CREATED_OR_THERE, DONE, NO_CONTENT, OK, created_with, decode_json, encode_json, is_json, nothing


@dataclass(frozen=True)
class Result:
    """The result of a job that was awaited."""

    content_type: str
    # A value of JSON, text, or bytes.
    data: Any


@dataclass(frozen=True)
class Posted:
    """A job that the server has accepted."""

    id: int
    token: str = field(repr=False)
    # With `wait_s`: the result, unless the time is over.
    result: Optional[Result] = None


@dataclass(frozen=True)
class JobState:
    """A job as the server sees it."""

    id: int
    # `waiting`, `running`, `done` or `dead`.
    state: str
    attempts: int
    # All members of the answer.
    all: Mapping[str, Any]


class Job:
    """An attempt at a job, for a worker's handler."""

    def __init__(self, pool: str, members: Mapping[str, Any], date: Optional[str] = None) -> None:
        self.pool = pool
        self.id: int = members["job"]
        self.attempt: int = members["attempt"]
        self.token: str = members["token"]
        self.deadline_ms: int = members["deadline_ms"]
        self.content_type: str = members["type"]
        self.key: Optional[str] = members.get("key")
        # A value of JSON, text, or bytes.
        self.data: Any = members["data"]
        if members.get("encoding") == "base64":
            self.data = decode(self.content_type, base64.b64decode(self.data))
        elif isinstance(self.data, str) and not is_json(self.content_type):
            # The server sends all bytes that are UTF-8 as a string.
            self.data = decode(self.content_type, self.data.encode())
        # Seconds to the deadline when the job came, by the server's clock, whose date has no fraction.
        self.rest_s = 0.0 if date is None else self.deadline_ms / 1000 - parsedate_to_datetime(date).timestamp() - 1
        # Another worker has the job: the result of this attempt will be refused.
        self.is_lost = False


class RetryLater(PicklableError):
    """A handler raises it to refuse a job that is to wait for some seconds before its next attempt."""

    def __init__(self, after_s: int, reason: str = "") -> None:
        super().__init__(reason)
        self.after_s = after_s


def create(pool: str, type: str, settings: Mapping[str, Any]) -> Call[bool]:
    body = encode_json({"type": type, **settings})
    return Call(Request("PUT", pool_path(pool), body=body), CREATED_OR_THERE, created_with("settings"))


def post(
    pool: str,
    data: Any,
    content_type: Optional[str],
    key: Optional[str],
    slot: Optional[int],
    wait_s: Optional[int],
    if_connected: bool,
    timeout_s: float,
) -> Call[Posted]:
    def parse(answer: Answer) -> Posted:
        result_type, result = answer.headers.get("Content-Type", ""), None
        if answer.status != ACCEPTED:
            result = Result(result_type, decode(result_type, answer.body))
        return Posted(int(answer.headers["Job-Id"]), answer.headers["Job-Token"], result)

    parameters = {"key": key, "slot": slot, "wait": wait_s, "if": "connected" if if_connected else None}
    query = [(name, str(value)) for name, value in parameters.items() if value is not None]
    body, headers = encode(data, content_type)
    timeout_s += wait_s or 0
    # A second copy would be a second job.
    return Call(
        Request("POST", pool_path(pool), query, headers, body, timeout_s),
        frozenset({200, ACCEPTED}),
        parse,
        repeatable=False,
        final=frozenset({"nobody_connected"}),
    )


def state(pool: str, job: int, token: Optional[str]) -> Call[JobState]:
    def parse(answer: Answer) -> JobState:
        members = json.loads(answer.body)
        return JobState(members["job"], members["state"], members.get("attempts", 0), members)

    headers = {} if token is None else {"Job-Token": token}
    return Call(Request("GET", pool_path(pool, "job", str(job)), headers=headers), OK, parse)


def poll(pool: str, worker: str, wait_s: int, timeout_s: float) -> Call[Optional[Job]]:
    def parse(answer: Answer) -> Optional[Job]:
        return None if answer.status == NO_CONTENT else Job(pool, decode_json(answer.body), answer.headers.get("Date"))

    query = [("worker", worker), ("wait", str(wait_s))]
    request = Request("POST", pool_path(pool, "work"), query, {"Accept": "application/json"}, timeout_s=wait_s + timeout_s)
    return Call(request, frozenset({200, NO_CONTENT}), parse, give_up_s=FOREVER)


def acknowledge(job: Job, result: Any) -> Call[None]:
    body, headers = encode(result, None)
    return report(job, "ack", [], headers, body)


def refuse(job: Job, reason: str, after_s: Optional[int]) -> Call[None]:
    query = [] if after_s is None else [("after", str(after_s))]
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    return report(job, "refuse", query, headers, reason[:REASON_MAX].encode("utf-8", "replace"))


def extend(job: Job, by_s: float) -> Call[bool]:
    request = report(job, "extend", [("by", str(math.ceil(by_s)))], {}, b"").request
    # An extension ends nothing: 404 and 409 of a repetition say that the attempt is over.
    return Call(request, OK, lambda answer: bool(json.loads(answer.body)["deadline_ms"]), give_up_s=by_s)


def report(job: Job, what: str, query: list[tuple[str, str]], headers: dict[str, str], body: bytes) -> Call[None]:
    query = [("attempt", str(job.attempt)), *query]
    target = pool_path(job.pool, "job", str(job.id), what)
    request = Request("POST", target, query, {**headers, "Job-Token": job.token}, body)
    # A repetition finds the attempt over if the first copy has ended it.
    return Call(request, DONE, nothing, statuses_of_done=frozenset({404, 409}))


def pool_path(pool: str, *segments: str) -> str:
    if "/" in pool:
        raise ValueError(f"the name of the pool {pool!r} has a slash")
    return path("pool", pool, *segments)


def encode(data: Any, content_type: Optional[str]) -> tuple[bytes, dict[str, str]]:
    """Bytes and text as they are, anything else as JSON."""
    if data is None and content_type is None:
        return b"", {}
    if content_type is not None and is_json(content_type):
        body, default = encode_json(data), content_type
    elif isinstance(data, (bytes, bytearray, memoryview)):
        body, default = bytes(cast(bytes, data)), "application/octet-stream"
    elif isinstance(data, str):
        body, default = data.encode(), "text/plain; charset=utf-8"
    else:
        body, default = encode_json(data), "application/json"
    return body, {"Content-Type": content_type or default}


def decode(content_type: str, body: bytes) -> Any:
    """A value of JSON or text, by the type; bytes if it is another, or if the body is not of its type."""
    of_json = is_json(content_type)
    if of_json:
        with contextlib.suppress(ValueError):
            return decode_json(body)
    if of_json or content_type.lower().startswith("text/"):
        with contextlib.suppress(UnicodeDecodeError):
            return body.decode()
    return body


ACCEPTED = 202
# Characters of the reason of a refusal.
REASON_MAX = 1000
