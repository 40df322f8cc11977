"""Classifies error replies: temporary ones, after which the request is sent again, and those that concern the user.

    passes   the server can't serve requests now: it starts, its disk is full, it has lost its leader, it is at its
             limit of clients
    denies   this program lacks the permission: a wrong password, a user without the right

Every program uses this classification. After a temporary refusal, the request is repeated with growing pauses, and each
outage is logged once. A denial ends the program, since only people can correct its cause.
"""

from __future__ import annotations

from typing import Final

import redis

#: The first words of errors that pass.
PASSING: Final = frozenset(
    {
        "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF", "OOM", "CLUSTERDOWN",
        "UNBLOCKED",
    }
)  # fmt: skip
_DENYING: Final = frozenset({"WRONGPASS", "NOAUTH", "NOPERM", "DENIED"})
_FULL: Final = "ERR max number of clients"  # Redis adds more in a cluster
_NO_LOGIN: Final = ("ERR AUTH ", "ERR invalid password", "ERR Client sent AUTH")  # before Redis 6, and without users


class DeniedError(Exception):
    """The server denies a permission that this program requires. The text is the server's."""


def passes(error: BaseException | str) -> bool:
    """Whether the same request may succeed later. ``error``: the server's message, or an exception with it."""
    text = words(error)
    return text.partition(" ")[0] in PASSING or text.startswith(_FULL)


def denies(error: BaseException | str) -> bool:
    """Whether the server refuses this user, so that repeating is useless. ``error``: as for ``passes``."""
    text = words(error)
    return text.partition(" ")[0] in _DENYING or text.startswith(_NO_LOGIN)


def again(error: BaseException) -> bool:
    """Whether to try again: no server answers, or the server's refusal is temporary."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):  # redis-py counts logins among these
        return not denies(error)
    return passes(error)


def words(error: BaseException | str) -> str:
    """The server's message. For an exception that is not the server's: its text."""
    text = str(error)
    code: str | None = getattr(error, "status_code", None)  # redis-py takes the code away where it knows it
    return f"{code} {text}" if code and not text.startswith(f"{code} ") else text
