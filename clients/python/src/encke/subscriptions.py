"""Requests for subscriptions of workers: wakes that are claimed, acknowledged and given back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from .errors import EnckeError
from .steps import Answer, Call, Caller, Request, Steps, path
from .streams import CREATED_OR_THERE, DONE, OK, created_with, encode_json, nothing


@dataclass(frozen=True)
class Link:
    """A stream that a subscription follows."""

    path: str
    # Where the worker begins to read.
    acked_offset: str
    tail_offset: str
    has_pending: bool


@dataclass(frozen=True)
class Wake:
    """Work that a worker has until its lease ends."""

    subscription: str
    wake_id: str
    generation: int
    token: str = field(repr=False)
    streams: Sequence[Link]
    # All members of the answer, such as the lease.
    all: Mapping[str, Any] = field(repr=False)


def subscribe(subscription: str, configuration: Mapping[str, Any]) -> Call[bool]:
    given = {name: value for name, value in configuration.items() if value is not None}
    return Call(Request("PUT", below(subscription), body=encode_json(given)), CREATED_OR_THERE, created_with("subscription_id"))


def unsubscribe(subscription: str) -> Call[None]:
    return Call(Request("DELETE", below(subscription)), DONE, nothing)


def claim(caller: Caller, subscription: str, worker: str) -> Steps[Optional[Wake]]:
    """A wake, or none if there is no work or another worker has it."""

    def parse(answer: Answer) -> Wake:
        members = json.loads(answer.body)
        links = [Link(link["path"], link["acked_offset"], link["tail_offset"], link["has_pending"]) for link in members["streams"]]
        return Wake(subscription, members["wake_id"], members["generation"], members["token"], links, members)

    request = Request("POST", below(subscription, "claim"), body=encode_json({"worker": worker}))
    try:
        wake: Wake = yield from caller.call(Call(request, OK, parse))
    except EnckeError as error:
        if error.code in ("NO_PENDING_WORK", "ALREADY_CLAIMED"):
            return None
        raise
    return wake


def ack(wake: Wake, offsets: Mapping[str, str], done: bool) -> Call[bool]:
    acks = [{"stream": stream, "offset": offset} for stream, offset in offsets.items()]
    request = report(wake, "ack", {"acks": acks, "done": done})
    return Call(request, OK, lambda answer: bool(json.loads(answer.body)["next_wake"]))


def release(wake: Wake) -> Call[None]:
    return Call(report(wake, "release", {}), DONE, nothing)


def jwks() -> Call[Mapping[str, Any]]:
    def parse(answer: Answer) -> Mapping[str, Any]:
        keys: Mapping[str, Any] = json.loads(answer.body)
        keys["keys"]
        return keys

    return Call(Request("GET", path("stream", "__ds", "jwks.json")), OK, parse)


def report(wake: Wake, what: str, members: Mapping[str, Any]) -> Request:
    body = encode_json({"wake_id": wake.wake_id, "generation": wake.generation, **members})
    return Request("POST", below(wake.subscription, what), body=body, token=wake.token)


def below(subscription: str, *segments: str) -> str:
    if "/" in subscription:
        raise ValueError(f"the name of the subscription {subscription!r} has a slash")
    return path("stream", "__ds", "subscriptions", subscription, *segments)
