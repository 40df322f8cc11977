"""Error replies: their classes, and whether a request is repeated after one.

    is_temporary   the server can't serve requests at present: it is starting, its disk is full, it has lost its leader,
                   or it has too many clients
    is_denied      this program lacks a permission: a wrong password, or a user without the permission

Every program uses this classification. After a temporary error, the request is repeated with growing delays, and each
outage is logged once. A denial ends the program, since only a person can correct its cause.
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


class OneGroupError(ReplyError):
    """Another group of the cluster has a key, and this program uses one group. The text has the remedy."""

    @classmethod
    def of(cls, moved: ReplyError | str) -> OneGroupError:
        """Return the error for a redirection."""
        return cls(f"{ONE_GROUP} ({moved})")


#: It begins with a code that is not temporary.
ONE_GROUP: Final = (
    "CROSSSLOT another group of the cluster has this key, and this program uses the keys of one group. Give all of its"
    " keys one hash tag, as in {tag}:name, and use the URL of the members of the group that has its slot"
)


class NoGroupError(redis.ResponseError):
    """There is no such group, or it was deleted while a reader was blocked on it."""


class NoStageError(redis.ResponseError):
    """There is no such stage: it never existed, it expired, or it was published or dropped."""


class StaleEpochError(redis.ResponseError):
    """A later epoch was already published under this fence."""


class ConflictError(redis.ResponseError):
    """This epoch of the fence was published with another ``check``, so its content was different."""


class CrossGroupError(redis.ResponseError):
    """The keys of a call are on different groups of a cluster. The call was not sent."""


_CLASSES = {
    "NOGROUP": NoGroupError, "NOSTAGE": NoStageError, "STALE": StaleEpochError, "CONFLICT": ConflictError,
}  # fmt: skip


def translated(error: redis.ResponseError) -> redis.ResponseError:
    """Return the error as an instance of the class for its code, if there is one."""
    known = _CLASSES.get(str(error).partition(" ")[0])
    return known(str(error)) if known is not None else error


#: The first words of temporary errors.
PASSING: Final = frozenset(
    {
        "LOADING", "MASTERDOWN", "READONLY", "TRYAGAIN", "BUSY", "NOREPLICAS", "MISCONF", "OOM", "CLUSTERDOWN",
        "UNBLOCKED", "MOVED",
    }
)  # fmt: skip
_DENYING: Final = frozenset({"WRONGPASS", "NOAUTH", "NOPERM", "DENIED"})
_FULL: Final = "ERR max number of clients"  # Redis adds more in a cluster
_NO_LOGIN: Final = ("ERR AUTH ", "ERR invalid password", "ERR Client sent AUTH")  # Redis before 6, or without users


class DeniedError(Exception):
    """The server denies a permission that this program requires. The text is that of the reply."""


def is_temporary(error: BaseException | str) -> bool:
    """Return whether the same request may succeed later. ``error``: the server's message, or an exception with it."""
    text = message_of(error)
    return text.partition(" ")[0] in PASSING or text.startswith(_FULL)


def is_denied(error: BaseException | str) -> bool:
    """Return whether the server denies a permission, so retrying is useless. ``error`` is as in ``is_temporary``."""
    text = message_of(error)
    return text.partition(" ")[0] in _DENYING or text.startswith(_NO_LOGIN)


def is_retryable(error: BaseException) -> bool:
    """Return whether to retry: no server answers, or the error reply is temporary."""
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):  # includes redis-py's login errors
        return not is_denied(error)
    return is_temporary(error)


def message_of(error: BaseException | str) -> str:
    """Return the message of an error reply, or the text of another exception."""
    text = str(error)
    code: str | None = getattr(error, "status_code", None)  # redis-py removes codes that it knows from the text
    return f"{code} {text}" if code and not text.startswith(f"{code} ") else text
