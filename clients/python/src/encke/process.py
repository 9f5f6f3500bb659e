"""The process that this code runs in. A child of `os.fork` has all objects of its parent, and must not use its connections and numbers."""

from __future__ import annotations

import os
import weakref
from typing import Any

Identity = tuple[int, int]


def identity() -> Identity:
    """A value that differs between a process and the children that it forks."""
    return os.getpid(), forks


def after_fork() -> None:
    global forks  # noqa: PLW0603
    forks += 1
    kept_of_parent.extend(open_bodies)


# Iterators of the bodies of responses. The end of one in a child would wait for the lock of its pool, which a thread may have had during
# the fork. So a child has references to all of them for ever.
open_bodies: weakref.WeakSet[Any] = weakref.WeakSet()
kept_of_parent: list[object] = []
# Forks between the first process and this one. A child in a namespace of its own may have the id of its parent.
forks = 0
if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=after_fork)
