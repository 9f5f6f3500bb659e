"""A client of Encke: streams, jobs and subscriptions over HTTP, blocking (`Encke`) and with asyncio (`AsyncEncke`)."""

from .aio import AsyncEncke, AsyncFollowing
from .client import Encke, Following
from .errors import (
    EnckeError,
    GoneError,
    NotFoundError,
    ProducerInUseError,
    StaleEpochError,
    StreamClosedError,
    TailDiffersError,
    UncertainProducerError,
    UnreachableError,
)
from .follower import End, Gap, Notice, Record, StopRequested
from .options import Retry, Token
from .pools import Job, JobState, Posted, Result, RetryLater
from .producer import Producer
from .streams import BEGINNING, NOW, Appended, Page, StreamInfo
from .subscriptions import Link, Wake
from .webhooks import InvalidSignatureError, verify_webhook
from .worker import AsyncWorker, Worker

__all__ = [
    "BEGINNING",
    "NOW",
    "Appended",
    "AsyncEncke",
    "AsyncFollowing",
    "AsyncWorker",
    "Encke",
    "EnckeError",
    "End",
    "Following",
    "Gap",
    "GoneError",
    "InvalidSignatureError",
    "Job",
    "JobState",
    "Link",
    "NotFoundError",
    "Notice",
    "Page",
    "Posted",
    "Producer",
    "ProducerInUseError",
    "Record",
    "Result",
    "Retry",
    "RetryLater",
    "StaleEpochError",
    "StopRequested",
    "StreamClosedError",
    "StreamInfo",
    "TailDiffersError",
    "Token",
    "UncertainProducerError",
    "UnreachableError",
    "Wake",
    "Worker",
    "verify_webhook",
]
