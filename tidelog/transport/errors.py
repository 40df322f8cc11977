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


class ReplyError(Exception):
    """An error reply. The text is the server's."""

    @property
    def code(self) -> str:
        """The first word of the text: ``ERR``, ``WRONGTYPE``, ..."""
        return str(self).partition(" ")[0]


class NoGroupError(redis.ResponseError):
    """There is no such group, or it ended while a reader was blocked on it."""


class NoStageError(redis.ResponseError):
    """There is no such stage: it never existed, its time to live was over, or it was published or dropped."""


class StaleEpochError(redis.ResponseError):
    """A later epoch has been published under this fence."""


class ConflictError(redis.ResponseError):
    """This epoch of the fence was published with another ``check``: for something else."""


_CLASSES = {
    "NOGROUP": NoGroupError, "NOSTAGE": NoStageError, "STALE": StaleEpochError, "CONFLICT": ConflictError,
}  # fmt: skip


def translated(error: redis.ResponseError) -> redis.ResponseError:
    """The error as an instance of its own class, if there is one for its code."""
    known = _CLASSES.get(str(error).partition(" ")[0])
    return known(str(error)) if known is not None else error


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


def is_temporary(error: BaseException | str) -> bool:
    """Whether the same request may succeed later. ``error``: the server's message, or an exception with it."""
    text = message_of(error)
    return text.partition(" ")[0] in PASSING or text.startswith(_FULL)


def is_denied(error: BaseException | str) -> bool:
    """Whether the server refuses this user, so that repeating is useless. ``error``: as for ``is_temporary``."""
    text = message_of(error)
    return text.partition(" ")[0] in _DENYING or text.startswith(_NO_LOGIN)


def is_retryable(error: BaseException) -> bool:
    """Whether to try again: no server answers, or the server's refusal is temporary."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):  # redis-py counts logins among these
        return not is_denied(error)
    return is_temporary(error)


def message_of(error: BaseException | str) -> str:
    """The server's message. For an exception that is not the server's: its text."""
    text = str(error)
    code: str | None = getattr(error, "status_code", None)  # redis-py takes the code away where it knows it
    return f"{code} {text}" if code and not text.startswith(f"{code} ") else text
