"""The coordinator `etcd:`, which uses the JSON gateway of etcd 3.4 and later.

    etcd://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],...[?ca=FILE&cert=FILE&key=FILE&tls=yes&password-file=FILE]

Rule 1: A version is the key's ``mod_revision``. A swap is a transaction that compares it.
Rule 2: A call tries one endpoint after another within its timeout, and begins with the one that answered last.
Rule 3: A swap whose request may have been sent is not repeated: its outcome is unknown, and the caller reads again.
Rule 4: A watch continues after the last revision that it knows, so a new connection misses nothing. It connects again,
        to the next endpoint, when the machine of its endpoint no longer answers TCP's keepalive probes, which are no
        requests to etcd. A stopped etcd keeps its connections open: the watch also connects again when a call to its
        endpoint has failed, or when nothing has come for 120 timeouts.

etcd grants leases in whole seconds, with a minimum of two seconds. Keys are therefore deleted up to two seconds late.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from .interface import CoordinatorConfigError, CoordinatorError, Lease, LeaseGoneError, Versioned

try:
    import requests
    import requests.adapters
    from etcd3gw.client import Etcd3Client
    from etcd3gw.exceptions import Etcd3Exception
    from urllib3.exceptions import NewConnectionError
except ImportError as error:
    raise CoordinatorConfigError(f"etcd:// needs a package ({error}): pip install 'tidelog[etcd]'") from error

T = TypeVar("T")
log = logging.getLogger(__name__)

PORT: Final = 2379
_OPTIONS: Final = ("ca", "cert", "key", "password-file", "tls")
SILENCE: Final = 120  # timeouts without a message after which a watch connects again
_PROBES: Final = 3  # of keepalive without an answer, after which the connection of a watch is lost
_GONE: Final = "requested lease not found"
_REFUSED: Final = ("invalid auth token", "revision of auth store is old")  # a new token helps; nothing was changed


@dataclass(frozen=True)
class EtcdAddress:
    """The parts of the URL."""

    endpoints: tuple[tuple[str, int], ...]
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


def address(rest: str) -> EtcdAddress:
    """Parse the part of a URL after ``etcd:``. Raises CoordinatorConfigError."""
    parts = urlsplit(f"etcd:{rest}")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise CoordinatorConfigError(f"etcd: has no option {unknown[0]!r}: its options are {', '.join(_OPTIONS)}")
    if parts.path not in ("", "/"):
        raise CoordinatorConfigError(f"etcd: has no path ({parts.path}): write etcd://host:2379,host:2379")
    for name in ("ca", "cert", "key", "password-file"):
        if name in options and not os.access(options[name], os.R_OK):
            raise CoordinatorConfigError(f"etcd: the file {options[name]!r} ({name}) cannot be read")
    if ("cert" in options) != ("key" in options):
        raise CoordinatorConfigError("etcd: cert and key must be set together")
    if options.get("tls", "yes") not in ("yes", "no"):
        raise CoordinatorConfigError(f"etcd: tls must be yes or no, not {options['tls']!r}")
    if "password-file" in options:
        password = Path(options["password-file"]).read_text(encoding="utf-8").rstrip("\n")
    tls = options.get("tls", "yes" if {"ca", "cert"} & set(options) else "no") == "yes"
    endpoints = tuple(_endpoint(host) for host in hosts.split(","))
    return EtcdAddress(
        endpoints, unquote(user), unquote(password), tls, options.get("ca"), options.get("cert"), options.get("key")
    )


def _endpoint(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        if parts.hostname and parts.username is None:
            return parts.hostname, parts.port or PORT
    except ValueError:
        pass
    raise CoordinatorConfigError(f"etcd: {text!r} is not a host: write etcd://host:2379,host:2379")


class EtcdCoordinator:
    """The coordinator of one process at an etcd cluster. The calls run in threads: they wait for sockets."""

    def __init__(self, where: EtcdAddress, *, timeout: float) -> None:
        """``timeout``: seconds that a call may take, with all its attempts. Does not connect yet."""
        self._where = where
        self._timeout = timeout
        self._attempt = timeout / min(len(where.endpoints) + 1, 4)  # seconds of one attempt
        self._first = 0  # the endpoint that answered last
        self._token = ""
        self._clients = [self._client(endpoint) for endpoint in where.endpoints]
        self._watches: set[_EtcdWatch] = set()
        self._threads = ThreadPoolExecutor(4, "etcd")
        self._closed = False

    async def get(self, key: str) -> Versioned | None:
        """See ``Coordinator.get``."""
        reply = await self._call("/kv/range", {"key": _text(key)})
        with _read(reply):
            for found in reply.get("kvs", ()):
                return Versioned(base64.b64decode(found.get("value", "")), int(found["mod_revision"]))
        return None

    async def swap(self, key: str, value: bytes | None, version: int, lease: Lease | None = None) -> int | None:
        """See ``Coordinator.swap``."""
        if value is None and version == 0:
            raise ValueError("a key that does not exist cannot be deleted")
        name = _text(key)
        change: dict[str, Any] = {"request_delete_range": {"key": name}}
        if value is not None:
            put = {"key": name, "value": base64.b64encode(value).decode(), "lease": lease.id if lease else "0"}
            change = {"request_put": put}
        condition = {"key": name, "target": "MOD", "result": "EQUAL", "mod_revision": str(version)}
        reply = await self._call("/kv/txn", {"compare": [condition], "success": [change]}, once=True)
        with _read(reply):
            return int(reply["header"]["revision"]) if reply.get("succeeded") else None

    async def grant(self, ms: int) -> Lease:
        """See ``Coordinator.grant``."""
        reply = await self._call("/lease/grant", {"TTL": str(-(-ms // 1000))})
        with _read(reply):
            return Lease(str(reply["ID"]), ms)

    async def keep(self, lease: Lease) -> bool:
        """See ``Coordinator.keep``."""
        reply = await self._call("/lease/keepalive", {"ID": lease.id})
        with _read(reply):
            return int(reply["result"].get("TTL", 0)) > 0

    async def revoke(self, lease: Lease) -> None:
        """See ``Coordinator.revoke``."""
        try:
            await self._call("/lease/revoke", {"ID": lease.id})
        except LeaseGoneError:
            pass

    def watch(self, key: str) -> _EtcdWatch:
        """See ``Coordinator.watch``."""
        watch = _EtcdWatch(self._streams(key))
        self._watches.add(watch)
        return watch

    async def close(self) -> None:
        """End all watches, and close the sockets. Leases remain until they expire."""
        self._closed = True
        for watch in self._watches:
            watch.close()
        self._threads.shutdown(wait=False)
        for client in self._clients:
            client.session.close()

    # -- in threads ----------------------------------------------------------------------------------------------
    async def _call(self, path: str, body: dict[str, Any], *, once: bool = False) -> dict[str, Any]:
        if self._closed:
            raise CoordinatorError("the coordinator is closed")
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._post, path, body, once)
        try:
            async with asyncio.timeout(self._timeout):
                return await future
        except TimeoutError:
            raise CoordinatorError(f"etcd did not answer within {self._timeout:g} s") from None

    def _post(self, path: str, body: dict[str, Any], once: bool) -> dict[str, Any]:
        deadline = time.monotonic() + self._timeout
        reasons = []
        for number in self._order():
            client = self._clients[number]
            try:
                reply = self._authorized(client, path, body)
                self._first = number
                return reply
            except (Etcd3Exception, requests.RequestException, KeyError, TypeError) as error:
                detail = getattr(error, "detail_text", None) or str(error)
                if _GONE in detail:
                    raise LeaseGoneError("the lease is gone") from error
                for watch in tuple(self._watches):
                    watch.suspect(number)
                reasons.append(f"{client.host}:{client.port}: {detail.strip()}")
                self._first = (number + 1) % len(self._clients)
                if (once and not _never_sent(error)) or time.monotonic() > deadline:
                    break
        raise CoordinatorError("etcd did not answer as it should: " + "; ".join(reasons))

    def _order(self) -> Iterator[int]:
        first, count = self._first, len(self._clients)
        return ((first + step) % count for step in range(count))

    def _authorized(self, client: Etcd3Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request, with a new token if etcd no longer accepts the last one."""
        for last in (False, True):
            try:
                reply: dict[str, Any] = client.post(client.get_url(path), json=body, headers=self._headers(client))
                return reply
            except Etcd3Exception as error:
                if last or not self._where.user or not any(text in (error.detail_text or "") for text in _REFUSED):
                    raise
                self._token = ""
        raise AssertionError("unreachable")

    def _headers(self, client: Etcd3Client) -> dict[str, str]:
        if not self._where.user:
            return {}
        if not self._token:
            body = {"name": self._where.user, "password": self._where.password}
            self._token = client.post(client.get_url("/auth/authenticate"), json=body)["token"]
        return {"Authorization": self._token}

    def _client(self, endpoint: tuple[str, int]) -> Etcd3Client:
        where = self._where
        client = Etcd3Client(
            *endpoint, protocol="https" if where.tls else "http", ca_cert=where.ca, cert_cert=where.cert,
            cert_key=where.key, timeout=self._attempt, api_path="/v3/",
        )  # fmt: skip
        client.session.trust_env = False  # no proxy, and no password from .netrc
        return client

    def _streams(self, key: str) -> Callable[[int, int], tuple[int, requests.Response]]:
        """Return what opens the stream of a watch, from a revision on, and returns the number of its endpoint."""

        def open_stream(attempt: int, revision: int) -> tuple[int, requests.Response]:
            number = (self._first + attempt) % len(self._clients)
            client = self._client(self._where.endpoints[number])
            for scheme in ("http://", "https://"):
                client.session.mount(scheme, _ProbingAdapter(self._timeout))
            request = {"create_request": {"key": _text(key), "start_revision": str(revision)}}
            limits = (self._attempt, self._timeout * SILENCE)
            headers = self._headers(client)
            return number, client.session.post(
                client.get_url("/watch"), json=request, stream=True, timeout=limits, headers=headers
            )

        return open_stream


class _ProbingAdapter(requests.adapters.HTTPAdapter):
    """Connections that are lost when the other machine answers no keepalive probes for about five timeouts."""

    def __init__(self, timeout: float) -> None:
        self._seconds = max(1, round(timeout))
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """See ``HTTPAdapter``."""
        tcp = socket.IPPROTO_TCP
        idle = getattr(socket, "TCP_KEEPIDLE", None) or socket.TCP_KEEPALIVE  # type: ignore[attr-defined]  # macOS
        probes = [
            (tcp, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (tcp, idle, 2 * self._seconds),
            (tcp, socket.TCP_KEEPINTVL, self._seconds), (tcp, socket.TCP_KEEPCNT, _PROBES),
        ]  # fmt: skip
        super().init_poolmanager(*args, socket_options=probes, **options)


_READING: Final = (OSError, Etcd3Exception, AttributeError, KeyError, TypeError, ValueError)  # of requests: an OSError


class _EtcdWatch:
    """Notifications from a thread that reads the stream of a watch."""

    def __init__(self, open_stream: Callable[[int, int], tuple[int, requests.Response]]) -> None:
        self._open = open_stream
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopped = threading.Event()
        self._endpoint = -1
        self._response: requests.Response | None = None
        threading.Thread(target=self._run, name="etcd-watch", daemon=True).start()

    def __aiter__(self) -> _EtcdWatch:
        return self

    async def __anext__(self) -> None:
        await self._changed.wait()
        if self._stopped.is_set():
            raise StopAsyncIteration
        self._changed.clear()

    def close(self) -> None:
        """End the watch, and its thread."""
        self._stopped.set()
        self._changed.set()
        response = self._response
        if response is not None:
            _shut(response)

    def suspect(self, endpoint: int) -> None:
        """Connect again, if the watch is connected to this endpoint: a call to it has failed. Called in any thread."""
        response = self._response
        if endpoint == self._endpoint and response is not None:
            self._endpoint = -1
            _shut(response)

    def _run(self) -> None:
        revision, attempt, bug = 0, 0, ""
        while not self._stopped.is_set():
            try:
                endpoint, stream = self._open(attempt, revision)
                with stream as response:
                    self._response, self._endpoint = response, endpoint
                    if self._stopped.is_set():
                        break
                    for line in response.iter_lines(chunk_size=None):
                        if line.strip():
                            revision = self._received(line, revision)
                            if not revision:  # etcd has ended the watch, but leaves the stream open
                                break
            except _READING:
                if not self._stopped.wait(0.1):
                    attempt += 1
            except Exception as error:  # without its watches, a member notices no change
                if repr(error) != bug:
                    bug = repr(error)
                    log.error("Bug in the watch of a key; it connects again: %r", error, exc_info=error)
                if not self._stopped.wait(0.1):
                    attempt += 1
            else:
                revision = 0  # etcd has ended the watch, for example because the revision was compacted
                self._stopped.wait(0.1)  # it may do so again, for example because of permissions

    def _received(self, line: bytes, revision: int) -> int:
        """Notify, if a message says that the key has changed. Return the revision from which to continue; 0 if etcd has
        ended the watch."""
        result = json.loads(line)["result"]
        if result.get("canceled"):
            return 0
        if result.get("events") or revision == 0:
            try:
                self._loop.call_soon_threadsafe(self._changed.set)
            except RuntimeError:  # the loop has ended
                self._stopped.set()
        return max(revision, int(result["header"]["revision"]) + 1)


@contextmanager
def _read(reply: object) -> Iterator[None]:
    """Read an answer. Raises CoordinatorError if it is not one of etcd, but for example of a proxy before it."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CoordinatorError(f"etcd did not answer as it should: {str(reply)[:200]}") from error


def _text(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _never_sent(error: Exception) -> bool:
    """Whether a request failed before a connection existed."""
    cause = error.__context__ if isinstance(error, Etcd3Exception) else error
    reason = getattr(cause.args[0], "reason", None) if isinstance(cause, requests.ConnectionError) else None
    return isinstance(reason, NewConnectionError)


def _shut(response: requests.Response) -> None:
    """End the reading of a response in another thread."""
    try:
        with socket.socket(fileno=os.dup(response.raw.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)
    except (OSError, ValueError, AttributeError):  # it has ended
        pass
