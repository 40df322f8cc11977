"""OAuth 2 with client credentials (RFC 6749, 4.4): access tokens for requests, which are renewed.

Rule 1: A token is renewed before it expires, and when a server rejects it (401).
Rule 2: Requests that need a token at the same time wait for one request to the token endpoint.
Rule 3: No error contains the secret, a token, or text of the token endpoint other than its error code.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

import msgspec

from tidelog.flows.api.errors import RetryError
from tidelog.flows.connectors.http.options import HttpAuth
from tidelog.options.structs import Struct

EARLY: Final = 0.1  # of the lifetime of a token that is not used
LIFETIME: Final = 300.0  # s of a token without ``expires_in``

_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_CODE: Final = re.compile(r"[a-z_]{1,60}")

Post: TypeAlias = Callable[[str, bytes, Mapping[str, str]], Awaitable[tuple[int, bytes]]]


class OAuth2Options(Struct):
    """The option ``auth.oauth2``."""

    token_url: str  # The token endpoint.
    client_id: str  # The ID of the client.
    client_secret: str  # The secret of the client.
    scope: str | None = None  # Scopes, separated by spaces. `null`: the default scopes of the server.
    parameters: dict[str, str] = msgspec.field(default_factory=dict)  # Further parameters, such as `audience`.
    credentials: Literal["header", "body"] = "header"
    # How the ID and the secret are sent: in the header `Authorization` (`header`), or as parameters (`body`).


class ClientAuth(HttpAuth):
    """The option ``auth`` of clients: also ``{oauth2: {...}}``."""

    oauth2: OAuth2Options | None = None

    def __post_init__(self) -> None:
        if self.oauth2 is None:
            super().__post_init__()
        elif self.bearer is not None or self.username is not None or self.password is not None:
            raise ValueError("auth is either bearer, or username and password, or oauth2")


class OAuth2Token:
    """The token of one connector. ``post`` sends a request to the token endpoint, and returns its status and body."""

    def __init__(self, options: OAuth2Options, post: Post) -> None:
        self._options = options
        self._post = post
        self._token = ""
        self._until = 0.0  # s, monotonic
        self._renewing = asyncio.Lock()

    async def header(self) -> str:
        """Return ``Authorization``. Raises RetryError if there is no token."""
        async with self._renewing:
            if not self._token or time.monotonic() >= self._until:
                await self._renew()
            return f"Bearer {self._token}"

    def rejected(self, header: str) -> None:
        """Forget the token if a request with this header was rejected."""
        if header == f"Bearer {self._token}":
            self._token = ""

    async def _renew(self) -> None:
        options = self._options
        fields = {"grant_type": "client_credentials", **options.parameters}
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if options.scope is not None:
            fields["scope"] = options.scope
        if options.credentials == "body":
            fields |= {"client_id": options.client_id, "client_secret": options.client_secret}
        else:
            both = f"{quote(options.client_id, safe='')}:{quote(options.client_secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(both.encode()).decode()
        try:
            status, body = await self._post(options.token_url, urlencode(fields).encode(), headers)
        except RetryError as error:
            raise RetryError(f"no access token: the token endpoint: {error}") from error
        found = _object(body)
        if status != 200:
            code = str(found.get("error", ""))
            text = f"{status} {code}" if _CODE.fullmatch(code) else str(status)
            raise RetryError(f"no access token: the token endpoint answered {text}")
        token, seconds = found.get("access_token"), found.get("expires_in")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise RetryError("no access token: the answer of the token endpoint has none")
        self._token = token
        lifetime = float(seconds) if isinstance(seconds, (int, float)) and seconds > 0 else LIFETIME
        self._until = time.monotonic() + lifetime * (1 - EARLY)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
