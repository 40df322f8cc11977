"""What all requests share (``GatewaySite``), one request (``GatewayCall``), and the declaration of routes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from tidelog.gateway.counts import GatewayCounts
from tidelog.gateway.errors import ProblemError
from tidelog.gateway.limits import GROUP_READERS, MEMORY, STREAMS, UseLimit
from tidelog.gateway.media import JSON, content_type
from tidelog.gateway.parameters import Parameter, name_in_path
from tidelog.gateway.requestkeys import RequestKeys
from tidelog.gateway.tails import StreamTails
from tidelog.gateway.tokens import AccessTokens
from tidelog.gateway.users import GatewayUser, GatewayUsers
from tidelog.operating import cors
from tidelog.transport.asyncconnection import AsyncConnection

HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
SMALL: Final = 128 << 10  # bytes of a body that has no entries
MEMORY_FACTOR: Final = 4  # memory of a body and its entries, in sizes of the body
BODY_WITHIN: Final = 30.0  # s for the body of a request

S = TypeVar("S", bound=msgspec.Struct)


class GatewaySite:
    """The users and limits of a gateway."""

    def __init__(
        self, users: GatewayUsers, local: bool, origins: Sequence[str], readers: int, user_readers: int
    ) -> None:
        """local: only this machine can connect. origins: those of pages with access (CORS)."""
        self.users = users
        self.local = local
        self.origins = origins
        self.tokens = AccessTokens()
        self.request_keys = RequestKeys()
        self.counts = GatewayCounts()
        self.memory = UseLimit("bytes of bodies and pages in flight", MEMORY, MEMORY // 2)
        self.readers = UseLimit("open event streams", readers, user_readers)
        self.group_readers = UseLimit("open readers of groups", GROUP_READERS, GROUP_READERS // 2)
        self.tails = StreamTails(UseLimit("streams that are followed", STREAMS, STREAMS))
        self.waiting: set[AsyncConnection] = set()  # connections on which the server waits for entries of groups
        self.closing = False  # the gateway is shutting down

    def headers(self, request: web.Request) -> dict[str, str]:
        """Return the headers of all responses."""
        return {**HEADERS, **(cors.headers_for(request, self.origins) if self.origins else {})}

    def close(self) -> None:
        """End the event streams. Their clients open them again."""
        self.closing = True
        self.tails.close()
        for connection in list(self.waiting):
            connection.close()


@dataclass
class GatewayCall:
    """One request of a user."""

    site: GatewaySite
    request: web.Request
    user: GatewayUser
    query: dict[str, Any]  # values of the declared parameters that the URL has
    expires: float = math.inf  # monotonic: when the token of the request expires

    @property
    def key(self) -> bytes:
        """The stream in the path."""
        return name_in_path(self.request, "key", "the key of the stream")

    @contextmanager
    def memory(self, size: int) -> Iterator[None]:
        """Take memory until the context ends. Raises ProblemError if too much is in use."""
        with self.site.memory.taken(self.user.name, size):
            yield

    async def body(self, most: int, taken: ExitStack) -> bytes:
        """Return the body. ``taken`` gets the memory of it and of what it contains.

        Raises ProblemError if it is too large or too slow.
        """
        length = self.request.content_length
        if length is not None:
            if length > most:
                raise too_large(most)
            taken.enter_context(self.memory(length * MEMORY_FACTOR))
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_WITHIN):
                async for part in self.request.content.iter_any():
                    size += len(part)
                    if size > most:
                        raise too_large(most)
                    if length is None:
                        taken.enter_context(self.memory(len(part) * MEMORY_FACTOR))
                    parts.append(part)
        except web.RequestPayloadError as error:
            raise ProblemError(400, "incomplete-body", f"The body can't be read: {error}") from None
        except TimeoutError:
            text = f"The body was not complete after {BODY_WITHIN:g} seconds."
            raise ProblemError(408, "too-slow", text, {"Connection": "close"}) from None
        return b"".join(parts)

    async def record(self, kind: type[S]) -> S:
        """Return a small JSON body as a structure. Raises ProblemError."""
        content_type(self.request.headers.get("Content-Type", ""), (JSON,))
        with ExitStack() as taken:
            body = await self.body(SMALL, taken)
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            status = 422 if isinstance(error, msgspec.ValidationError) else 400
            raise ProblemError(status, "invalid-body", f"the body: {error}") from None


def too_large(most: int) -> ProblemError:
    text = f"The body is too large: it can have {most} bytes. Send several requests."
    return ProblemError(413, "too-large", text, {"Connection": "close"})


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(value) + b"\n", status=status, content_type=JSON, headers=headers)


@dataclass(frozen=True)
class Answer:
    """A response in the OpenAPI document. ``schema``: for JSON; None: the response has no JSON body."""

    description: str
    schema: Mapping[str, Any] | None = None
    media: tuple[str, ...] = (JSON,)


@dataclass(frozen=True)
class GatewayRoute:
    """A route. OpenAPI is derived from it. All routes can also respond with the errors of ``security``."""

    method: str
    path: str
    handle: Callable[[GatewayCall], Awaitable[web.StreamResponse]]
    summary: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)  # request headers, with descriptions
    body: Mapping[str, Any] | None = None  # schema of the body in JSON
    body_media: tuple[str, ...] = (JSON,)
    by_token: bool = False  # a token for the stream permits it
