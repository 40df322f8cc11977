"""Errors of the console."""

from __future__ import annotations

import redis

from tidelog.transport.errors import is_denied, message_of


class ConsoleError(Exception):
    """The console can't start: an option is invalid, or its address can't be used."""


class UnavailableError(Exception):
    """The server does not answer, or can't serve requests now."""


class GroupUnavailableError(redis.ResponseError):
    """The result of a call to a group of a cluster that does not answer, while other groups do.

    reason: why it does not answer, without the name of the group. denied: the group refuses the user. uncertain: the
    call may have been executed. again: another attempt may succeed immediately.
    """

    def __init__(
        self, text: str, reason: str = "", denied: bool = False, uncertain: bool = False, again: bool = False
    ) -> None:
        super().__init__(text)
        self.reason = reason or text
        self.denied = denied
        self.uncertain = uncertain
        self.again = again


class LoginError(Exception):
    """The server refused the user. The text is for the login page."""


class SessionEndedError(Exception):
    """The session has ended: it expired, the user logged out, or the server no longer accepts the password."""


class PageError(Exception):
    """A request that can't be served; ``status`` is that of the response, and the text is displayed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def page_error(error: BaseException, status: int = 400) -> PageError | UnavailableError:
    """Return the error of a page for an error reply. status: of replies other than denials, which are 403."""
    if isinstance(error, GroupUnavailableError):
        return UnavailableError(str(error))
    return PageError(403 if is_denied(error) else status, message_of(error))
