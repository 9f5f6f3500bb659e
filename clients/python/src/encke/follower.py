"""Follows streams by lines of JSON, over every end of a response, with each record once."""

from __future__ import annotations

import base64
import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from .errors import NO_TOKEN, EnckeError, GoneError, NotEnckeError
from .options import Backoff
from .steps import (
    BAD_REQUEST,
    FOREIGN_RESPONSES_MAX,
    FOREVER,
    LOST_BY_PROXY,
    REFUSED_FOR_NOW,
    UNAUTHORIZED,
    Answer,
    Caller,
    Close,
    Open,
    Opened,
    Receive,
    Request,
    Sleep,
    Steps,
    is_foreign,
    is_passing,
    unreachable,
    without_secrets,
)
from .streams import BEGINNING, NO_CONTENT, decode_json, stream_path

log = logging.getLogger("encke")

# A name, a pattern (`chat/**`), several of both, or several with an offset for each.
Streams = Union[str, Sequence[str], Mapping[str, str]]


@dataclass(frozen=True)
class Record:
    """One message of a JSON stream, or one append to another."""

    stream: str
    # The position behind the record. With several streams it is behind all messages of the append.
    offset: str
    # A JSON value, text, or bytes of what is no text.
    data: Any
    # Milliseconds since 1970, with `times`.
    time_ms: Optional[int] = None
    # With several streams, where `after` continues. It is behind the record; of an append of several messages only the last one has an id
    # behind it, and the others that before it, so that none is lost.
    id: Optional[str] = None


@dataclass(frozen=True)
class End:
    """A stream has no further records."""

    stream: str
    why: str
    end_reason: Optional[str]


@dataclass(frozen=True)
class StopRequested:
    """A reader asks the writer of the stream to stop."""

    stream: str


@dataclass(frozen=True)
class Gap:
    """Records of a stream that a pattern matches were removed before they could be read."""

    stream: str
    why: str


Notice = Union[End, StopRequested, Gap]


@dataclass(frozen=True)
class Start:
    """Where a follower begins, as the application has asked."""

    streams: Streams
    from_: Optional[str]
    last: Optional[int]
    after: Optional[str]
    times: bool
    on_notice: Optional[Callable[[Notice], None]]

    def feed(self) -> Feed:
        if sum(given is not None for given in (self.from_, self.last, self.after)) > 1:
            raise ValueError("only one of from_, last and after says where to begin")
        if isinstance(self.streams, str) and not is_pattern(self.streams):
            if self.after is not None:
                raise ValueError("after is the id of a record of several streams; of one stream use from_")
            return OneStream(self.streams, self)
        return SeveralStreams(self)


class Feed:
    """The position in the streams, and the meaning of lines."""

    position: Optional[str]
    # The streams, for errors.
    names: str
    is_ended = False
    # Records behind the position are removed.
    is_gone: Optional[str] = None
    # Records and notices that are received and not delivered yet, in their order.
    ready: deque[Union[Record, Notice]]

    def __init__(self, start: Start) -> None:
        self.start = start
        self.ready = deque()

    def request(self) -> tuple[str, list[tuple[str, str]]]:
        """The path and the query from which the records behind the position come."""
        raise NotImplementedError

    def line(self, line: Mapping[str, Any]) -> bool:
        """Takes a line; whether it says a position."""
        raise NotImplementedError

    def notify(self, notice: Notice) -> None:
        """Delivers a notice."""
        if self.start.on_notice is not None:
            self.start.on_notice(notice)
        elif isinstance(notice, Gap):
            log.warning("records of %s are removed before they were read: %s", notice.stream, notice.why)

    def disconnect(self, why: str, resumable: bool) -> None:
        log.info("the server ends the response: %s", why)
        if not resumable:
            self.is_gone = why


class OneStream(Feed):
    def __init__(self, name: str, start: Start) -> None:
        super().__init__(start)
        self._name = name
        self.names = repr(name)
        self._stop_was_requested = False
        self.position = None if start.last is not None else start.from_ or BEGINNING

    def request(self) -> tuple[str, list[tuple[str, str]]]:
        begin = ("last", str(self.start.last)) if self.position is None else ("offset", self.position)
        return stream_path(self._name), [begin, ("live", "true")]

    def line(self, line: Mapping[str, Any]) -> bool:
        if "offset" in line:
            offset = line["offset"]
            data = line["data"] if "data" in line else base64.b64decode(line["base64"])
            # In this order, since a signal handler may raise: a record that comes twice is better than one that is lost.
            self.ready.append(Record(self._name, offset, data, line.get("timeMs")))
            self.position = offset
            return True
        control = line.get("control")
        if control is None:
            return False
        if control.get("stopRequested") and not self._stop_was_requested:
            self.ready.append(StopRequested(self._name))
            self._stop_was_requested = True
        if control.get("streamClosed"):
            self.ready.append(End(self._name, "closed", control.get("endReason")))
            self.is_ended = True
        self.position = control.get("streamNextOffset", self.position)
        return True


class SeveralStreams(Feed):
    def __init__(self, start: Start) -> None:
        super().__init__(start)
        begin = None if start.last is not None else start.from_ or BEGINNING
        names = [start.streams] if isinstance(start.streams, str) else start.streams
        # Each name with its offset; one without begins with its last messages. The server refuses a name that is given twice.
        self._begins: list[tuple[str, Optional[str]]] = (
            [*names.items()] if isinstance(names, Mapping) else [(name, begin) for name in names]
        )
        self.names = ", ".join(repr(name) for name, _ in self._begins)
        self._open = {name for name, _ in self._begins}
        self._has_pattern = any(is_pattern(name) for name in self._open)
        self.position = start.after
        ambiguous = [name for name, offset in self._begins if offset is None and AT_OFFSET.search(name)]
        if ambiguous:
            raise ValueError(f"the end of the name {ambiguous[0]!r} is an offset for the server: follow it alone to begin with last")

    def request(self) -> tuple[str, list[tuple[str, str]]]:
        query = [("stream", name if offset is None else f"{name}@{offset}") for name, offset in self._begins]
        if self.start.last is not None:
            query.append(("last", str(self.start.last)))
        if self.position is not None:
            query.append(("after", self.position))
        return "/v1/events", query

    def line(self, line: Mapping[str, Any]) -> bool:
        id = line.get("id", self.position)
        if "nextOffset" in line:
            self._records(line, id)
        elif "end" in line:
            self._end(line["end"])
        elif "stop" in line:
            self.ready.append(StopRequested(line["stop"]["stream"]))
        elif "gap" in line:
            self.ready.append(Gap(line["gap"]["stream"], line["gap"]["why"]))
        self.position = id
        return "id" in line

    def _records(self, line: Mapping[str, Any], behind: Optional[str]) -> None:
        stream, offset, time_ms = line["stream"], line["nextOffset"], line.get("timeMs")
        if "messages" in line:
            data = line["messages"]
        else:
            data = [line["text"] if "text" in line else base64.b64decode(line["base64"])]
        ids = [self.position] * (len(data) - 1) + [behind]
        self.ready.extend(Record(stream, offset, value, time_ms, id) for value, id in zip(data, ids))

    def _end(self, end: Mapping[str, Any]) -> None:
        stream = end["stream"]
        # A response that begins after an end may say it again.
        if stream in self._open or self._has_pattern:
            self._open.discard(stream)
            self.ready.append(End(stream, end["why"], end.get("endReason")))
        self.is_ended = not self._open and not self._has_pattern


class Follower:
    """Connects, receives and connects again. `next` says what is to be done for the next record."""

    def __init__(self, caller: Caller, start: Start) -> None:
        self.feed = start.feed()
        # The application has closed it.
        self.is_closed = False
        self._caller = caller
        self._times = start.times
        self._lines = Lines()
        self._url = ""
        self._is_open = False
        self._backoff = Backoff(caller.options.retry, FOREVER)
        self._is_renewed = False
        self._foreign = 0
        self._was_live = False

    def next(self) -> Steps[Optional[Record]]:
        """The next record; none when all streams have ended."""
        try:
            return (yield from self._next())
        except EnckeError as error:
            error.request = error.request or f"following {self.feed.names}"
            raise

    def _next(self) -> Steps[Optional[Record]]:
        while True:
            if self.is_closed:
                self.feed.ready.clear()
            while self.feed.ready:
                ready = self.feed.ready.popleft()
                if isinstance(ready, Record):
                    return ready
                self.feed.notify(ready)
            if self.feed.is_ended or self.is_closed:
                if self._is_open:
                    self._is_open = False
                    yield Close()
                return None
            try:
                yield from self._receive() if self._is_open else self._connect()
            except EnckeError as error:
                self._foreign += 1
                # A follower that has had a line of the server waits until the server is back.
                can_pass = is_foreign(error) or (self._was_live and error.code == NO_TOKEN)
                if not can_pass or (self._foreign >= FOREIGN_RESPONSES_MAX and not self._was_live):
                    raise
                log.warning("following %s: %s", self.feed.names, error)
                yield from self._wait(error)

    def _connect(self) -> Steps[None]:
        if self.feed.is_gone is not None:
            raise GoneError(410, "no_longer_kept", self.feed.is_gone)
        token = yield from self._caller.token()
        outcome = yield from self._caller.exchange(Open(self._request(), token))
        if isinstance(outcome, Opened):
            content_type = outcome.headers.get("Content-Type", "")
            self._url = without_secrets(outcome.url)
            if content_type.partition(";")[0].strip() != LINES_TYPE:
                yield Close()
                raise NotEnckeError(200, self._url, f"its type is {content_type!r}, not {LINES_TYPE}")
            self._lines = Lines()
            self._is_open = True
            self._is_renewed = False
        elif isinstance(outcome, Answer):
            yield from self._refused(outcome, token)
        elif is_passing(outcome):
            yield from self._wait(outcome)
        else:
            raise unreachable(outcome)

    def _refused(self, answer: Answer, token: Optional[str]) -> Steps[None]:
        # Behind the id of a record there may be nothing to follow any longer.
        if answer.status == NO_CONTENT and isinstance(self.feed, SeveralStreams) and self.feed.position is not None:
            self.feed.is_ended = True
            return
        if answer.status < BAD_REQUEST:
            raise NotEnckeError(answer.status, without_secrets(answer.url), "its status is not 200")
        if answer.status == UNAUTHORIZED and not self._is_renewed:
            self._is_renewed = yield from self._caller.renew(token)
            if self._is_renewed:
                return
        error = answer.error()
        if answer.status not in REFUSED_FOR_NOW | LOST_BY_PROXY:
            raise error
        yield from self._wait(error, answer.headers.get("Retry-After"))

    def _request(self) -> Request:
        target, query = self.feed.request()
        if self._times:
            query.append(("times", "true"))
        # Lines are not compressed, and must not be by a proxy: it would hold them back.
        headers = {"Accept": LINES_TYPE, "Accept-Encoding": "identity"}
        return Request("GET", target, query, headers, timeout_s=self._caller.options.quiet_s)

    def _receive(self) -> Steps[None]:
        # If this is broken off, by the cancellation of a task, the response is lost. The position is not.
        self._is_open = False
        outcome = yield Receive()
        if isinstance(outcome, bytes):
            self._is_open = True
            try:
                for line in self._lines.receive(outcome):
                    self._take(decode_json(line))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._is_open = False
                yield Close()
                raise NotEnckeError(200, self._url, f"a line can't be read, {error!r}") from error
        elif not (self.feed.is_ended or self.feed.is_gone is not None or self.is_closed):
            yield from self._wait(outcome or "the response ended")

    def _take(self, line: Mapping[str, Any]) -> None:
        if "disconnect" in line:
            self.feed.disconnect(line["disconnect"].get("why", ""), line["disconnect"].get("resumable", True))
        elif self.feed.line(line):
            self._backoff.reset()
            self._was_live = True

    def _wait(self, why: object, retry_after: Optional[str] = None) -> Steps[None]:
        wait = self._backoff.wait(retry_after)
        assert wait is not None, "a follower does not give up"
        log.info("connecting again in %.2f s: %s", wait, why)
        yield Sleep(wait)


class Lines:
    """Bytes as lines. Only a line feed ends one: texts may have the other characters that Python counts as ends of lines."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []

    def receive(self, data: bytes) -> list[bytes]:
        """The lines that are whole now."""
        first, *others = data.split(b"\n")
        self._begun.append(first)
        if not others:
            return []
        lines = [b"".join(self._begun), *others[:-1]]
        self._begun = [others[-1]]
        return [line for line in lines if line]


def is_pattern(name: str) -> bool:
    return name == "**" or name.endswith("/**")


# The end of a name which the server takes for where to begin.
AT_OFFSET = re.compile(r"@(-1|now|[0-9a-f]{16}_[0-9a-f]{16})\Z")
LINES_TYPE = "application/x-ndjson"
