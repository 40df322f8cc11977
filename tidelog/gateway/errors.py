"""Errors of the gateway, and the status of each error reply of the server.

A response with an error is a JSON object of RFC 9457 (``application/problem+json``)::

    {"status": 409, "title": "Conflict", "detail": "The key holds a string, not a stream.", "code": "WRONGTYPE"}

``code`` is that of the server's error reply, or a word of the gateway in lower case. Programs should use ``status`` and
``code``; ``detail`` is for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from tidelog.transport.errors import is_denied, is_temporary, message_of

RETRY_AFTER: Final = "1"  # s after which a request may succeed
CHALLENGE: Final = 'Basic realm="tidelog", charset="UTF-8"'
PROBLEM: Final = "application/problem+json"

_STATUSES: Final = {"NOPERM": 403, "NOGROUP": 404, "WRONGTYPE": 409, "BUSYGROUP": 409, "CONFLICT": 409}
_MISSING: Final = ("ERR no such key", "ERR The key does not exist")
_DAMAGED: Final = "ERR damaged data"  # semantics [96]


class GatewayError(Exception):
    """The gateway can't start: an option is invalid, or its address can't be used."""


class ServerUnavailableError(Exception):
    """The server does not answer, or can't serve requests now."""


class ProblemError(Exception):
    """A request that can't be served. ``status``, ``code`` and the text are those of the response."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> bytes:
        """The JSON object of the response."""
        named: dict[str, Any] = {
            "status": self.status, "title": HTTPStatus(self.status).phrase,
            "detail": str(self).encode("utf-8", "replace").decode(), "code": self.code,
        }  # fmt: skip
        return msgspec.json.encode(named)


def unauthorized(code: str, detail: str, challenge: str = CHALLENGE) -> ProblemError:
    return ProblemError(401, code, detail, {"WWW-Authenticate": challenge})


def no_password() -> ProblemError:
    return unauthorized("no-password", "The default user without a password has access on the machine only.")


def expired() -> ProblemError:
    """Return the error of a token. It does not ask for a password, so browsers show no dialog."""
    text = "The token is unknown, or has expired. POST /v1/tokens returns another one."
    return unauthorized("token-expired", text, 'Bearer realm="tidelog"')


def unavailable(detail: str, code: str = "unavailable") -> ProblemError:
    return ProblemError(503, code, detail, {"Retry-After": RETRY_AFTER})


def problem_of(error: Exception) -> ProblemError:
    """Return the response to an error reply of the server."""
    text = message_of(error)
    code = text.partition(" ")[0]
    if is_temporary(text):
        return unavailable(text, code)
    if code in _STATUSES:
        return ProblemError(_STATUSES[code], code, text)
    if is_denied(text):
        return unauthorized(code, text)
    if text.startswith(_MISSING):
        return ProblemError(404, code, text)
    return ProblemError(500 if text.startswith(_DAMAGED) else 400, code, text)
