"""Connections of redis-py for an ``Access``, used by ``Client`` and ``AsyncClient``.

Rule 1: with several URLs, or Sentinels, each new connection is opened to the current leader. If its server becomes a
        replica, the connection is closed at the first READONLY or MOVED error, so that the next one finds the new
        leader. A pipeline reads its other replies first (``in_pipeline``), and then closes it.
Rule 2: options in a URL take precedence over keyword arguments, as in redis-py; fields of an Access take precedence
        over its URLs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import MovedError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from tidelog.transport.access import Access
from tidelog.transport.address import Address
from tidelog.transport.connection import MULTISLOT
from tidelog.transport.errors import ReplyError
from tidelog.transport.lookup import leader_url

NAME: Final = "tidelog-client"  # of connections for the leader lookup
MOVED: Final = "the server is a replica now: another server is the leader"


class LeaderMovedError(redis.ConnectionError):
    """The server of a connection to the leader is a replica now, or serves other slots. ``moved``: its reply."""

    def __init__(self, moved: redis.ResponseError) -> None:
        super().__init__(MOVED)
        self.moved = moved


def access_of(where: str | Access) -> Access:
    """Return the argument of a client, which is an Access or a text for ``Access.of``, as an Access."""
    return Access.of(where) if isinstance(where, str) else where


def pool_options(where: str | Access, options: dict[str, Any], module: Any) -> dict[str, Any]:
    """Return the keyword arguments for a connection pool; ``module`` is redis or redis.asyncio.

    Raises ValueError if a URL is invalid, or if one of several servers is a unix socket.
    """
    access = access_of(where)
    address = access.address(access.urls[0])
    made = _shared(where, access, address, options)
    if access.movable:
        if any(access.address(url).path for url in access.urls):
            raise ValueError(f"{access.places}: a unix socket can't be one of several servers here")
        made["access"] = replace(access, retries=0)
        made["connection_class"] = _LEADERS[module, address.tls]
    elif address.path:
        made |= {"path": address.path, "connection_class": _UNIX[module]}
    else:
        made |= {"host": address.host, "port": address.port}
        made["connection_class"] = _SINGLE[module, address.tls]
    return made


def member_options(
    where: str | Access, options: dict[str, Any], module: Any, host: str, port: int
) -> dict[str, Any]:  # fmt: skip
    """Return the keyword arguments for the pool of a member of a cluster; the first ones are as in ``pool_options``.

    User and password are those of the URL with this address, or else of the first URL.
    """
    access = access_of(where)
    addresses = [access.address(url) for url in access.urls]
    address = next((each for each in addresses if (each.host, each.port) == (host, port)), addresses[0])
    address = replace(address, host=host, port=port, path="", tls=address.tls or access.secure)
    made = _shared(where, access, address, options)
    made.pop("path", None)
    return made | {"host": host, "port": port, "connection_class": _SINGLE[module, address.tls]}


def _shared(where: str | Access, access: Access, address: Address, options: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments that do not depend on the kind of connection."""
    made: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    if not address.path:
        made["maint_notifications_config"] = MaintNotificationsConfig(enabled=False)
    if access.movable or isinstance(where, Access):
        made |= _patience(address.connect_ms, address.read_ms)
    made |= options | _patience(access.options.get("connect_ms"), access.options.get("read_ms"))
    if address.protocol is not None:
        made["protocol"] = address.protocol
    if address.db is not None:
        made["db"] = address.db
    made |= {name: value for name in ("username", "password") if (value := getattr(address, name)) is not None}
    if address.tls:
        made |= _tls(address)
    return made


def _patience(connect_ms: int | None, read_ms: int | None) -> dict[str, Any]:
    found = {"socket_connect_timeout": connect_ms, "socket_timeout": read_ms}
    return {name: ms / 1000 for name, ms in found.items() if ms is not None}


def _tls(address: Address) -> dict[str, Any]:
    return {
        "ssl_ca_certs": address.ca_file, "ssl_ca_path": address.ca_path, "ssl_certfile": address.cert_file,
        "ssl_keyfile": address.key_file, "ssl_password": address.key_password,
        "ssl_cert_reqs": "required" if address.verify else "none",
        "ssl_check_hostname": bool(address.verify and address.check_hostname),
    }  # fmt: skip


def _leader(access: Access) -> Address:
    """Return the address of the current leader. Raises redis.RedisError if there is none."""
    try:
        return access.address(leader_url(access, NAME))
    except ReplyError as error:
        kind = redis.AuthenticationError if error.code in ("WRONGPASS", "NOAUTH") else redis.ResponseError
        raise kind(str(error)) from None
    except OSError as error:  # redis-py would add an address to which no connection was attempted
        raise redis.ConnectionError(str(error)) from error


class _AnySlots(redis.connection.AbstractConnection):
    """A connection whose commands may have keys of different slots."""

    def on_connect_check_health(self, check_health: bool = True) -> None:
        super().on_connect_check_health(check_health)
        self.send_command(*MULTISLOT.args)  # type: ignore[no-untyped-call]
        with suppress(redis.ResponseError):  # an earlier version does not know it, and does not need it
            self.read_response()


class _Tcp(_AnySlots, redis.Connection):
    pass


class _Tls(_AnySlots, redis.SSLConnection):
    pass


class _Unix(_AnySlots, redis.UnixDomainSocketConnection):
    pass


class _ToLeader(_Tcp):
    """A connection to the server that is the leader when the connection is opened."""

    in_pipeline = False  # whether the caller reads all replies, and then closes the connection after a LeaderMovedError

    def __init__(self, *, access: Access, **options: Any) -> None:
        self._access = access
        super().__init__(**options)  # type: ignore[no-untyped-call]

    def _connect(self) -> Any:
        _adopt(self, _leader(self._access))
        return super()._connect()  # type: ignore[no-untyped-call]

    def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return super().read_response(*args, **options)
        except (redis.ReadOnlyError, MovedError) as error:
            if not self.in_pipeline:
                self.disconnect()  # type: ignore[no-untyped-call]
            raise LeaderMovedError(error) from None


class _ToLeaderTls(_ToLeader, redis.SSLConnection):
    pass


class _AsyncAnySlots(redis.asyncio.connection.AbstractConnection):
    """As ``_AnySlots``, for asyncio."""

    handshake_metadata: Any = None  # the reply of HELLO, which redis.asyncio does not keep; None without RESP3

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        read = self.read_response

        async def noting(*args: Any, **options: Any) -> Any:
            reply = await read(*args, **options)
            if isinstance(reply, dict):
                self.handshake_metadata = reply
            return reply

        self.read_response = noting  # type: ignore[method-assign]
        try:
            await super().on_connect_check_health(check_health)
        finally:
            del self.read_response
        await self.send_command(*MULTISLOT.args)
        with suppress(redis.ResponseError):
            await self.read_response()


class _AsyncTcp(_AsyncAnySlots, redis.asyncio.Connection):
    pass


class _AsyncTls(_AsyncAnySlots, redis.asyncio.SSLConnection):
    pass


class _AsyncUnix(_AsyncAnySlots, redis.asyncio.UnixDomainSocketConnection):
    pass


class _AsyncToLeader(_AsyncTcp):
    """As ``_ToLeader``, for asyncio."""

    in_pipeline = False

    def __init__(self, *, access: Access, **options: Any) -> None:
        self._access = access
        super().__init__(**options)

    async def _connect(self) -> None:
        _adopt(self, await asyncio.to_thread(_leader, self._access))
        await super()._connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *args: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*args, **options)
        except (redis.ReadOnlyError, MovedError) as error:
            if not self.in_pipeline:
                await self.disconnect()
            raise LeaderMovedError(error) from None


class _AsyncToLeaderTls(_AsyncToLeader, redis.asyncio.SSLConnection):
    pass


def _adopt(connection: Any, address: Address) -> None:
    connection.host, connection.port = address.host, address.port
    connection.username, connection.password = address.username, address.password


_SINGLE: Final[dict[tuple[Any, bool], type[Any]]] = {
    (redis, False): _Tcp, (redis, True): _Tls, (redis.asyncio, False): _AsyncTcp, (redis.asyncio, True): _AsyncTls,
}  # fmt: skip
_UNIX: Final[dict[Any, type[Any]]] = {redis: _Unix, redis.asyncio: _AsyncUnix}
_LEADERS: Final[dict[tuple[Any, bool], type[Any]]] = {
    (redis, False): _ToLeader, (redis, True): _ToLeaderTls, (redis.asyncio, False): _AsyncToLeader,
    (redis.asyncio, True): _AsyncToLeaderTls,
}  # fmt: skip
