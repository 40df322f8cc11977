"""``POST /v1/tokens``: tokens with which a page reads one stream without the password of a user.

An ``EventSource`` can't send ``Authorization``. Its URL has a token instead, which a program with the password obtains.

Rule 1: until it expires, a token permits ``GET`` and ``HEAD`` of one stream, not as a member of a group. The requests
        are those of its user, so the ACL decides in addition.
Rule 2: a token is random. The gateway stores its digest in memory only, so tokens end with the process, and nobody can
        derive one. The lookup by digest shows nothing about other tokens in its duration.
Rule 3: an event stream ends when its token expires.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Final

from tidelog.gateway.limits import TOKENS, USER_TOKENS, UseLimit
from tidelog.gateway.users import GatewayUser

PREFIX: Final = "tgw_"  # so that scanners for secrets recognize a token
LONGEST: Final = 24 * 3600.0  # s
DEFAULT: Final = 3600.0  # s


@dataclass(frozen=True)
class AccessToken:
    """What a token permits."""

    user: GatewayUser
    key: bytes  # the stream
    expires: float  # monotonic


class AccessTokens:
    """All tokens. ``clock`` returns seconds that only increase."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._limit = UseLimit("tokens that have not expired", TOKENS, USER_TOKENS)
        self._tokens: dict[bytes, tuple[AccessToken, ExitStack]] = {}  # by digest

    def issue(self, user: GatewayUser, key: bytes, seconds: float) -> tuple[str, datetime]:
        """Return a new token and when it expires. Raises ProblemError if the user has too many."""
        self.sweep()
        token = PREFIX + secrets.token_urlsafe(32)
        with ExitStack() as stack:
            stack.enter_context(self._limit.taken(user.name))
            stack.enter_context(user.held())
            self._tokens[_digest(token)] = AccessToken(user, key, self._clock() + seconds), stack.pop_all()
        return token, datetime.now(UTC) + timedelta(seconds=seconds)

    def find(self, token: str) -> AccessToken | None:
        """Return what a token permits; None if it is unknown or has expired."""
        found = self._tokens.get(_digest(token))
        return None if found is None or _has_ended(found[0], self._clock()) else found[0]

    def sweep(self) -> None:
        """Forget expired tokens, and those of users that the server no longer accepts."""
        now = self._clock()
        for digest, (token, uses) in list(self._tokens.items()):
            if _has_ended(token, now):
                del self._tokens[digest]
                uses.close()


def _has_ended(token: AccessToken, now: float) -> bool:
    return token.expires <= now or token.user.closed


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
