"""Requests for streams: create, append, close, read, list and what else `/v1/stream/` has."""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Callable, Optional, Union, cast

import httpx

from .errors import EnckeError, GoneError, NotFoundError, ProducerInUseError
from .producer import Producer
from .steps import BAD_REQUEST, SERVER_ERROR, Answer, Call, Caller, Request, Steps, path

# The offsets of a stream's beginning, and of where it ends when the request arrives.
BEGINNING = "-1"
NOW = "now"


@dataclass(frozen=True)
class StreamInfo:
    """The properties of a stream, by HEAD or the list of streams."""

    name: str
    content_type: str
    next_offset: str
    # Appended messages, those that were removed since included; none where the server has not counted them.
    messages: Optional[int] = None
    closed: bool = False
    end_reason: Optional[str] = None
    stop_requested: bool = False
    owner: Optional[str] = None
    metadata: Optional[Mapping[str, Any]] = None
    # Where the stream begins, if its first records are removed.
    floor: Optional[str] = None


@dataclass(frozen=True)
class Appended:
    """An append that was made."""

    # The position behind the data. If an earlier attempt has made the append, it may be behind more than that.
    next_offset: str
    # An earlier attempt has made it.
    repeated: bool
    # A reader asks the writer to stop.
    stop_requested: bool


@dataclass(frozen=True)
class Page:
    """The data of a stream when it was read: a list of messages of a JSON stream, bytes of any other."""

    data: Any
    next_offset: str
    closed: bool
    end_reason: Optional[str]
    # Nothing was behind it.
    is_last: bool = True

    @property
    def text(self) -> str:
        """The bytes as UTF-8."""
        data: bytes = self.data
        return data.decode()


def create(
    stream: str,
    content_type: str,
    data: Any,
    *,
    ttl_s: Optional[int],
    expires_at: Optional[str],
    closed: bool,
    ack: Optional[str],
    retention: Optional[str],
    metadata: Optional[Mapping[str, Any]],
    owner: Optional[str],
    producer_timeout_s: Optional[int],
) -> Call[bool]:
    fields = {
        "Stream-TTL": ttl_s,
        "Stream-Expires-At": expires_at,
        "Stream-Closed": "true" if closed else None,
        "Encke-Ack": ack,
        "Encke-Retention": retention,
        "Encke-Metadata": None if metadata is None else json.dumps(metadata),
        "Encke-Owner": owner,
        "Encke-Producer-Timeout": producer_timeout_s,
    }
    headers = {
        "Content-Type": content_type,
        **{name: str(value) for name, value in fields.items() if value is not None},
    }
    body = b"" if data is None else encode(content_type, data)
    return Call(Request("PUT", stream_path(stream), headers=headers, body=body), CREATED_OR_THERE, created)


def fork(stream: str, source: str, at: Optional[str]) -> Call[bool]:
    headers = {"Stream-Forked-From": stream_path(source)}
    if at is not None:
        headers["Stream-Fork-Offset"] = at
    return Call(Request("PUT", stream_path(stream), headers=headers), CREATED_OR_THERE, created)


def created(answer: Answer) -> bool:
    # A caller without the right to read gets no offset of a stream that is there, and servers of others have no `Encke-Ack`.
    if "Encke-Ack" not in answer.headers:
        next_offset(answer)
    return answer.status == CREATED


def created_with(member: str) -> Callable[[Answer], bool]:
    """Whether a response whose object has a member says that something is new."""
    return lambda answer: json.loads(answer.body)[member] is not None and answer.status == CREATED


def head(caller: Caller, stream: str) -> Steps[StreamInfo]:
    def parse(answer: Answer) -> StreamInfo:
        headers = answer.headers
        messages, metadata = headers.get("Encke-Messages"), headers.get("Encke-Metadata")
        return StreamInfo(
            name=stream,
            content_type=headers.get("Content-Type", ""),
            next_offset=next_offset(answer),
            messages=None if messages is None else int(messages),
            closed=is_true(headers, "Stream-Closed"),
            end_reason=headers.get("Encke-End-Reason"),
            stop_requested=is_true(headers, "Encke-Stop-Requested"),
            owner=headers.get("Encke-Owner"),
            metadata=None if metadata is None else json.loads(metadata),
            floor=headers.get("Encke-Floor"),
        )

    try:
        return (yield from caller.call(Call(Request("HEAD", stream_path(stream)), OK, parse)))
    except EnckeError as error:
        if BAD_REQUEST <= error.status < SERVER_ERROR:
            # The response to HEAD has no body: that to GET says why.
            yield from caller.call(Call(Request("GET", stream_path(stream), [("offset", NOW)]), OK, nothing))
        raise


def close(stream: str, reason: Optional[str]) -> Call[str]:
    headers = {"Stream-Closed": "true"}
    if reason is not None:
        headers["Encke-End-Reason"] = reason

    def parse(answer: Answer) -> str:
        if not is_true(answer.headers, "Stream-Closed"):
            raise KeyError("Stream-Closed: true")
        # A caller that may only stop the stream gets no offset.
        offset: str = answer.headers.get("Stream-Next-Offset", "")
        return offset

    return Call(Request("POST", stream_path(stream), headers=headers), DONE, parse)


def stop(stream: str) -> Call[None]:
    return Call(Request("POST", stream_path(stream), headers={"Encke-Stop": "true"}), DONE, nothing)


def truncate(stream: str, before: str) -> Call[str]:
    request = Request("POST", stream_path(stream), headers={"Encke-Truncate": before})
    # A caller without the right to read gets no offset.
    return Call(request, DONE, lambda answer: answer.headers.get("Encke-Floor", ""))


def delete(stream: str) -> Call[None]:
    return Call(Request("DELETE", stream_path(stream)), DONE, nothing, statuses_of_done=frozenset({404, 410}))


def page_of_list(prefix: str, after: Optional[str]) -> Call[tuple[list[StreamInfo], Optional[str]]]:
    def parse(answer: Answer) -> tuple[list[StreamInfo], Optional[str]]:
        page = json.loads(answer.body)
        return [listed(entry) for entry in page["streams"]], page.get("next")

    query = [("prefix", prefix), ("limit", str(LIST_PAGE))]
    if after is not None:
        query.append(("after", after))
    return Call(Request("GET", "/v1/stream", query), OK, parse)


def listed(entry: Mapping[str, Any]) -> StreamInfo:
    return StreamInfo(
        name=entry["name"],
        content_type=entry["contentType"],
        next_offset=entry["nextOffset"],
        messages=entry.get("messages"),
        closed=entry.get("closed", False),
        end_reason=entry.get("endReason"),
        stop_requested=entry.get("stopRequested", False),
        owner=entry.get("owner"),
        metadata=entry.get("metadata"),
        floor=entry.get("floor"),
    )


def read(caller: Caller, stream: str, from_: str, last: Optional[int]) -> Steps[Page]:
    """Reads up to the end, in as many responses as the server makes of it."""
    messages: list[Any] = []
    pieces: list[bytes] = []
    query = ("offset", from_) if last is None else ("last", str(last))
    while True:
        page: Page = yield from caller.call(Call(Request("GET", stream_path(stream), [query]), OK, part))
        of_bytes = isinstance(page.data, bytes)
        if of_bytes:
            pieces.append(page.data)
        else:
            messages += page.data
        if page.closed or page.is_last or query == ("offset", page.next_offset):
            return replace(page, data=b"".join(pieces) if of_bytes else messages)
        query = ("offset", page.next_offset)


def part(answer: Answer) -> Page:
    """The page that is in one response."""
    headers, data = answer.headers, cast(Any, answer.body)
    offset, closed, is_last = next_offset(answer), is_true(headers, "Stream-Closed"), is_true(headers, "Stream-Up-To-Date")
    if is_json(headers.get("Content-Type", "")):
        data = decode_json(data)
        if not isinstance(data, list):
            raise ValueError("it is no array")
    return Page(data, offset, closed, headers.get("Encke-End-Reason"), is_last)


class Writers:
    """The producers of a client and the content types of their streams, one for each stream that was written lately."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._producers: OrderedDict[str, Producer] = OrderedDict()
        self._content_types: dict[str, str] = {}

    def producer(self, stream: str) -> Producer:
        """The client's own producer at a stream."""
        # Each step is atomic: threads that append at the same time get the same one.
        producer = self._producers.get(stream) or self._producers.setdefault(stream, Producer())
        with contextlib.suppress(KeyError):
            self._producers.move_to_end(stream)
        if len(self._producers) > WRITERS_MAX:
            # The one that was used longest ago. Should it append again, it is another producer.
            self._content_types.pop(self._producers.popitem(last=False)[0], None)
        return producer

    def created(self, stream: str, content_type: str) -> None:
        self.forget(stream)
        self.producer(stream)
        self._content_types[stream] = content_type

    def forget(self, stream: str) -> None:
        self._producers.pop(stream, None)
        self._content_types.pop(stream, None)

    def append(
        self, stream: str, messages: Iterable[Any], producer: Producer, content_type: Optional[str], if_match: Optional[str]
    ) -> Steps[Optional[Appended]]:
        """Appends all messages, a batch at a time, each batch once."""
        was_known = stream in self._content_types
        try:
            type_sent = content_type or (yield from self._content_type(stream))
            appended = None
            for body in batches(type_sent, messages):
                appended = yield from self._append(stream, type_sent, body, producer, if_match)
                if_match = appended.next_offset if if_match is not None else None
            return appended
        except ProducerInUseError:
            self.forget(stream)
            raise
        except (NotFoundError, GoneError) as error:
            # A later stream of this name may have another type, and does not know the producer.
            if not error.may_be_done:
                self.forget(stream)
            raise
        except EnckeError as error:
            if error.code != "type_differs" or content_type is not None:
                raise
            # A later stream of this name has another type.
            self._content_types.pop(stream, None)
            if not (was_known and isinstance(messages, list) and len(messages) == 1):
                raise
        return (yield from self.append(stream, messages, producer, None, if_match))

    def _append(self, stream: str, content_type: str, body: bytes, producer: Producer, if_match: Optional[str]) -> Steps[Appended]:
        while True:
            fields = {"Content-Type": content_type, **({} if if_match is None else {"If-Match": if_match})}
            request = Request("POST", stream_path(stream), headers=fields, body=body)
            # The request is valid: from here on its number is used.
            request = replace(request, headers={**fields, **producer.begin()})
            try:
                call = Call(request, APPENDED, lambda answer: appended(answer, stream, producer))
                made: Appended = yield from self._caller.call(call)
            except EnckeError as error:
                producer.failed(error)
                if error.code != "sequence_gap" or error.may_be_done or producer.is_named or producer.next_seq == 0:
                    raise
                # The stream was deleted and created again, or has forgotten the producer: nothing was made with this number.
                producer.epoch, producer.next_seq = producer.epoch + 1, 0
            else:
                producer.made()
                return made

    def _content_type(self, stream: str) -> Steps[str]:
        known = self._content_types.get(stream)
        if known is None:
            info = yield from head(self._caller, stream)
            known = info.content_type
            if stream in self._producers:
                self._content_types[stream] = known
        return known


def batches(content_type: str, messages: Iterable[Any]) -> Iterator[bytes]:
    """Bodies: of JSON arrays of about `BATCH_BYTES`, of other types one for each message."""
    if not is_json(content_type):
        yield from (encode(content_type, message) for message in messages)
        return
    batch: list[bytes] = []
    size = 0
    for message in messages:
        encoded = encode_json(message)
        if batch and size + len(encoded) > BATCH_BYTES:
            yield array(batch)
            batch, size = [], 0
        batch.append(encoded)
        size += len(encoded) + 1
    if batch:
        yield array(batch)


def encode(content_type: str, data: Any) -> bytes:
    """One message as a body. In an array, since the server takes the elements of an array as messages."""
    if is_json(content_type):
        return array([encode_json(data)])
    return encode_bytes(data)


def encode_bytes(data: Any) -> bytes:
    value = snapshot(data)
    if isinstance(value, EncodedJson):
        raise TypeError("a stream that is not of JSON takes text and bytes")
    return value.encode() if isinstance(value, str) else value


class EncodedJson(bytes):
    """A value as JSON."""


def snapshot(data: Any) -> Union[str, bytes]:
    """The value as it is now, which its owner may change while an append waits."""
    if isinstance(data, (str, bytes)):
        return data
    return bytes(cast(bytes, data)) if isinstance(data, (bytearray, memoryview)) else EncodedJson(encode_json(data))


def encode_json(value: Any) -> bytes:
    if isinstance(value, EncodedJson):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def decode_json(text: Union[bytes, str]) -> Any:
    """A value of JSON. An integer with more digits than Python reads (4,300) is a `Decimal`."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=integer)


def integer(digits: str) -> Union[int, Decimal]:
    try:
        return int(digits)
    except ValueError:
        return Decimal(digits)


def array(messages: list[bytes]) -> bytes:
    return b"[" + b",".join(messages) + b"]"


def appended(answer: Answer, stream: str, producer: Producer) -> Appended:
    made = Appended(next_offset(answer), answer.status == NO_CONTENT, is_true(answer.headers, "Encke-Stop-Requested"))
    epoch, seq = int(answer.headers["Producer-Epoch"]), int(answer.headers["Producer-Seq"])
    if epoch != producer.epoch or seq < producer.next_seq:
        raise ValueError(f"it acknowledges the append {seq} of the epoch {epoch}")
    if made.repeated and not answer.is_repetition and not producer.is_named:
        raise ProducerInUseError(stream, producer.id)
    return made


def next_offset(answer: Answer) -> str:
    offset: str = answer.headers["Stream-Next-Offset"]
    if not offset:
        raise KeyError("Stream-Next-Offset")
    return offset


def stream_path(name: str) -> str:
    """The path of a stream."""
    if name.strip("/").partition("/")[0] == RESERVED:
        raise ValueError(f"the name {name!r} begins with {RESERVED}, below which no stream is")
    return path("stream", name)


def nothing(_: Answer) -> None:
    return None


def is_true(headers: httpx.Headers, name: str) -> bool:
    return bool(headers.get(name) == "true")


def is_json(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/json"


CREATED = 201
NO_CONTENT = 204
OK = frozenset({200})
CREATED_OR_THERE = frozenset({200, CREATED})
# An append that is made, and one that was made before.
APPENDED = frozenset({200, NO_CONTENT})
DONE = frozenset({NO_CONTENT})
# Subscriptions have the paths below this segment.
RESERVED = "__ds"
# Streams whose producers a client remembers.
WRITERS_MAX = 10_000
# A batch is one record; `--body-max` of the server allows 16 MiB.
BATCH_BYTES = 1 << 20
# Streams on a page of the list.
LIST_PAGE = 1000
