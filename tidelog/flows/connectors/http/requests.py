"""The base of sinks that send HTTP requests (``http_client``, ``elastic``).

Rule 1: At most ``concurrency`` requests are in flight, however many events wait (see ``concurrency``).
Rule 2: The event of a request without a response is retried. The sink then opens a connection to check whether the peer
        is reachable. If not, the connector is disconnected, and unsent events wait for the next connection.
Rule 3: If the peer requests a pause (Retry-After) or fails several times in a row, the sink triggers ``unavailable``
        for that time. After the pause, a single event is sent first.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec
from yarl import URL

from tidelog.flows.api.cancellation import cancel
from tidelog.flows.api.connector import Sink
from tidelog.flows.api.connectoroptions import ConnectorOptions
from tidelog.flows.api.errors import RejectError, RetryError
from tidelog.flows.connectors.destinations import is_bad_header
from tidelog.flows.connectors.http.concurrency import ConcurrencyLimit
from tidelog.flows.connectors.http.oauth2 import ClientAuth, OAuth2Token
from tidelog.flows.connectors.http.proxies import HttpProxy, proxy_for, proxy_of
from tidelog.flows.connectors.tls import ClientTlsOptions
from tidelog.operating.redaction import redacted
from tidelog.options.limits import AtLeastOne
from tidelog.options.units import Duration, PositiveDuration, Size

CHUNK = 1 << 16  # bytes of a response that are read at a time


class HttpRequestOptions(ConnectorOptions, kw_only=True):
    """Options of connectors that send requests."""

    auth: ClientAuth | None = None  # The credentials, see above. `null`: none.
    tls: ClientTlsOptions | None = None
    # TLS settings for `https`, see above. `null`: the system's certificate authorities.
    proxy: str = "environment"
    # The proxy: `environment` (`HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY`), `none`, or a URL.
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    # Headers of each request. In `http_client`, their values are [templates](#templates).
    concurrency: AtLeastOne = 4  # Maximum number of requests in flight.
    target_latency: Duration | None = None
    # Latency above which the number of requests in flight is reduced. `null`: 3 times the average plus 100 ms.
    request_timeout: PositiveDuration = PositiveDuration(30.0)
    # Time limit for a request, from its start to the end of its response.
    connect_timeout: PositiveDuration = PositiveDuration(5.0)  # Time limit for opening a connection.
    max_response: Size = Size(1 << 20)  # Maximum size of a response, decompressed.

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.headers.items():
            if not name or any(each <= " " or each == ":" or each > "~" for each in name) or is_bad_header(value):
                raise ValueError(f"headers: {name!r} can't be a header, or its value can't")
        if self.proxy not in ("environment", "none"):
            proxy_of(self.proxy)
        if self.auth is not None and self.auth.oauth2 is not None:
            try:
                check_url(self.auth.oauth2.token_url, None)
            except ValueError as error:
                raise ValueError(f"auth: oauth2: {error}") from None


def check_url(text: str, tls: ClientTlsOptions | None, schemes: tuple[str, str] = ("http", "https")) -> URL:
    """Parse the URL of a server. Raises ValueError if it is not valid."""
    if not text.isascii() or any(each <= " " for each in text):
        raise ValueError(f"url: {text!r} has spaces or non-ASCII characters: escape them")
    try:
        url = URL(text, encoded=True)
        url.port  # noqa: B018 - it raises ValueError
    except ValueError as error:
        raise ValueError(f"url: {text!r}: {error}") from error
    if url.scheme not in schemes or not url.host:
        raise ValueError(f"url: {text!r}: it must have the form {schemes[0]}://HOST:PORT/PATH")
    if url.raw_user is not None or url.raw_password is not None:
        raise ValueError(f"url: use auth: {{username: ..., password: ...}} for the credentials of {url.host}")
    if tls is not None and url.scheme != schemes[1]:
        raise ValueError(f"tls: {text!r} is not {schemes[1]}")
    return url


@dataclass(frozen=True)
class HttpResponse:
    """A complete response. If the body is longer than ``max_response``, it is omitted."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes | None  # None: longer than max_response

    @property
    def excerpt(self) -> str:
        """Return the status code and the beginning of the body, for the reason of a failure."""
        text = " ".join((self.body or b"")[:1000].decode("utf-8", "replace").split())
        return f"{self.status}: {text[:200]}" if text else str(self.status)


class HttpRequestSink(Sink):
    """A sink that sends requests."""

    def __init__(self, options: HttpRequestOptions, urls: Sequence[URL]) -> None:
        self._urls = urls
        self._common = options
        self._session: aiohttp.ClientSession | None = None
        self._ssl: ssl.SSLContext | bool = True
        self._proxies: dict[URL, HttpProxy | None] = {}  # by the origin of a server
        self._token: OAuth2Token | None = None
        if options.auth is not None and options.auth.oauth2 is not None:
            self._token = OAuth2Token(options.auth.oauth2, self._post)
        self._looking: asyncio.Task[None] | None = None
        self._shut = False  # closed by the runtime
        self.limit = ConcurrencyLimit(options.concurrency, options.target_latency, self._limit_changed)
        self.limit.close()

    # -- the connection --------------------------------------------------------------------------------------
    async def connect(self) -> None:
        options = self._common
        self._shut = False
        if options.tls is not None:
            self._ssl = await asyncio.to_thread(options.tls.context)
        self._proxies = {each.origin(): proxy_for(each, options.proxy) for each in self._urls}
        await self.reach()
        headers = {}
        if options.auth is not None and options.auth.oauth2 is None:
            headers["Authorization"] = options.auth.header
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl),
            timeout=aiohttp.ClientTimeout(total=options.request_timeout, sock_connect=options.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
        )
        self.limit.open()

    async def close(self) -> None:
        self._shut = True
        self.limit.close()
        looking, self._looking = self._looking, None
        await cancel(looking)
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def reach(self) -> None:
        """Open a connection to one of the servers. Raises OSError if none is reachable."""
        problem: OSError | None = None
        for url in self._urls:
            try:
                await self._open(url)
            except OSError as error:
                problem = error
            else:
                return
        assert problem is not None  # noqa: S101 - there is at least one
        raise problem

    async def _open(self, url: URL) -> None:
        proxy = self._proxies.get(url.origin())
        context: ssl.SSLContext | bool | None = self._ssl if url.scheme in ("https", "wss") else None
        if proxy is not None:
            url, context = proxy.url, True if proxy.url.scheme == "https" else None
        try:
            async with asyncio.timeout(self._common.connect_timeout):
                _, writer = await asyncio.open_connection(url.host, url.port, ssl=context)
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        except TimeoutError as error:
            wait = self._common.connect_timeout
            raise TimeoutError(f"{url.host}:{url.port} can't be reached within {wait:g} s") from error

    def suspect(self, error: BaseException) -> None:
        """Check whether the peer is still reachable, after a request without a response."""
        if not self._shut and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._check(error))

    async def _check(self, error: BaseException) -> None:
        try:
            await self.reach()
        except OSError as problem:
            if not self._shut:
                self._looking = None  # the runtime calls close next, which must not wait for this task
                self.limit.close()
                self.context.disconnected(problem if not isinstance(error, OSError) else error)

    # -- the limit -------------------------------------------------------------------------------------------
    def _limit_changed(self) -> None:
        held = self.limit.held
        self.concurrency = 0 if held else self.limit.now
        if self._common.authoritative:
            if held:
                self.context.trigger("unavailable", self.limit.reason)
            else:
                self.context.restore("unavailable", probe=True)
        self.context.wake()

    # -- requests --------------------------------------------------------------------------------------------
    async def call(self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str]) -> HttpResponse:
        """Send a request and return the response. A rejected access token is renewed once.

        Raises RejectError if the request is not valid, and RetryError if there is no response.
        """
        if self._token is None:
            return await self._exchange(method, url, body, headers)
        authorization = await self._token.header()
        answer = await self._exchange(method, url, body, {**headers, "Authorization": authorization})
        if answer.status != 401:
            return answer
        self._token.rejected(authorization)
        self.context.count("renewed")
        return await self._exchange(method, url, body, {**headers, "Authorization": await self._token.header()})

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a request to the token endpoint."""
        answer = await self._exchange("POST", URL(url, encoded=True), body, headers)
        return answer.status, answer.body or b""

    async def _exchange(self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str]) -> HttpResponse:
        session = self._session
        if session is None:
            raise RetryError("not connected")
        origin = url.origin()
        if origin not in self._proxies:  # of the token endpoint
            self._proxies[origin] = proxy_for(origin, self._common.proxy)
        proxy = self._proxies[origin]
        to_proxy = {} if proxy is None or proxy.header is None else {"Proxy-Authorization": proxy.header}
        if url.scheme == "http":  # there is no tunnel
            headers = {**headers, **to_proxy}
        try:
            async with session.request(
                method, url, data=body, headers=headers, allow_redirects=False, ssl=self._ssl,
                proxy=None if proxy is None else proxy.url, proxy_headers=to_proxy,
            ) as response:  # fmt: skip
                self.context.sent(len(body or b""))
                found = {name.lower(): value for name, value in response.headers.items()}
                return HttpResponse(response.status, found, await self._read(response))
        except TimeoutError as error:
            raise RetryError(f"no response within {self._common.request_timeout:g} s") from error
        except aiohttp.InvalidURL as error:
            raise RejectError(redacted(f"not a valid request: {error}")) from error
        except (aiohttp.ClientError, OSError) as error:  # before ValueError: a bad certificate is both
            self.suspect(error)
            text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise RetryError(redacted(text)) from error
        except ValueError as error:
            raise RejectError(redacted(f"not a valid request: {error}")) from error

    async def _read(self, response: aiohttp.ClientResponse) -> bytes | None:
        most = self._common.max_response
        parts = []
        size = 0
        async for part in response.content.iter_chunked(CHUNK):
            size += len(part)
            if size > most:
                response.close()
                return None
            parts.append(part)
        return b"".join(parts)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds for which the peer requests a pause; None: the header is missing or not valid."""
    given = headers.get("retry-after", "").strip()
    if given.isascii() and given.isdecimal() and len(given) < 10:
        return float(given)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(given).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
