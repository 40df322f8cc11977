"""Readers of groups: pages and event streams of ``?group=``, ``ack`` and ``nack``.

Rule 1: delivery is at least once. An entry that is not acknowledged within ``retry`` is delivered again, to any reader
        of the group. This includes entries of a response that the client did not receive.
Rule 2: each event stream of a group has a connection to the server, because the server decides which reader receives an
        entry. Their number is limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Final

import msgspec
from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import Batch, Entry, StreamId
from tidelog.gateway.entryjson import json_value
from tidelog.gateway.errors import ProblemError, ServerUnavailableError, unavailable
from tidelog.gateway.events import QUIET, RANGE, EventWriter, SlowReaderError
from tidelog.gateway.frames import KEEPALIVE, event, frame
from tidelog.gateway.limits import DEFAULT_ENTRIES, ENTRIES, PAGE
from tidelog.gateway.parameters import name_in_path
from tidelog.gateway.reading import send_page
from tidelog.gateway.site import GatewayCall, json_response
from tidelog.gateway.tails import BACKOFF
from tidelog.gateway.users import VERIFIED, replies_of, result_of
from tidelog.operating.httpaddress import endless
from tidelog.options.start import EARLIEST
from tidelog.transport.asyncconnection import AsyncConnection, LostError
from tidelog.transport.backoff import Delays
from tidelog.transport.call import Call

RETRY: Final = 30.0  # s, default until an entry is delivered again
OPTIONS: Final = ("retry", "maxdeliveries", "deadletter")  # parameters that need ``group``


class IdsBody(msgspec.Struct, forbid_unknown_fields=True):
    """IDs of entries."""

    ids: list[str]


def check_options(call: GatewayCall) -> None:
    """Raise ProblemError if a parameter of groups is given without ``group``."""
    for name in OPTIONS:
        if name in call.query:
            raise ProblemError(400, "invalid-parameter", f"The parameter {name} requires group=NAME.")


async def read_group(call: GatewayCall, media: str) -> web.Response:
    """Respond with entries that are delivered to this reader."""
    limit = call.query.get("limit", DEFAULT_ENTRIES)
    found = await call.user.read_page(_read(call, limit, PAGE, None))
    if not found and (seconds := call.query.get("wait")):
        async with _connected(call) as connection:
            try:
                reply = await replies_of(connection, [_read(call, limit, PAGE, max(1, round(seconds * 1000)))])
            except LostError as error:
                raise unavailable(str(error)) from None
            found = result_of(reply[0])
    return await send_page(call, media, found, {}, {})


async def follow_group(call: GatewayCall) -> web.StreamResponse:
    """Send entries as they are delivered to this reader."""
    with call.site.readers.taken(call.user.name):
        async with _connected(call) as connection:
            result_of((await _sent(connection, _read(call, 0, RANGE, None)))[0])  # creates the group
            writer = EventWriter(call)
            try:
                await writer.begin(None)
                await _send(call, connection, writer)
            except SlowReaderError:
                writer.disconnect()
            except ConnectionResetError:  # the client has gone
                pass
            return writer.response


async def ack(call: GatewayCall) -> web.Response:
    """Acknowledge entries."""
    ids = await _ids(call)
    number = await call.user.read(calls.tack(call.key, _group_in_path(call), *ids))
    return json_response({"acknowledged": number})


async def nack(call: GatewayCall) -> web.Response:
    """Return entries for redelivery."""
    ids = await _ids(call)
    delay = round(call.query.get("delay", 0) * 1000)
    number = await call.user.read(calls.tnack(call.key, _group_in_path(call), *ids, delay=delay))
    return json_response({"returned": number})


async def list_groups(call: GatewayCall) -> web.Response:
    """Respond with the groups of a stream."""
    found = await call.user.read(calls.tgroup_list(call.key))
    groups = [
        {"group": json_value(each.name), "offset": str(each.offset), "pending": each.pending, "readers": each.readers}
        for each in found
    ]
    return json_response({"groups": groups})


def _read(call: GatewayCall, limit: int, size: int, block: int | None) -> Call[Batch]:
    query = call.query
    return calls.tread(
        call.key, query.get("after", EARLIEST).last_id, limit, max_bytes=size, block=block, group=query["group"],
        retry=max(1, round(query.get("retry", RETRY) * 1000)), max_deliveries=query.get("maxdeliveries"),
        deadletter=query.get("deadletter"),
    )  # fmt: skip


async def _ids(call: GatewayCall) -> list[str]:
    ids = (await call.record(IdsBody)).ids
    if not 0 < len(ids) <= ENTRIES:
        raise ProblemError(422, "invalid-body", f"ids must be a list of 1 to {ENTRIES} IDs.")
    for each in ids:
        try:
            StreamId.parse(each)
        except ValueError as error:
            raise ProblemError(422, "invalid-body", f"ids: {error}") from None
    return ids


def _group_in_path(call: GatewayCall) -> bytes:
    return name_in_path(call.request, "group", "the group")


# -- event streams -------------------------------------------------------------------------------------------
@asynccontextmanager
async def _connected(call: GatewayCall) -> AsyncIterator[AsyncConnection]:
    """Open a connection on which the server waits for entries. It is closed if the gateway shuts down."""
    site, user = call.site, call.user
    endless(call.request)  # entries must not be delivered to a client that has gone
    with site.group_readers.taken(user.name), user.held():
        try:
            connection = await user.open()
        except ServerUnavailableError as error:
            raise unavailable(str(error)) from None
        site.waiting.add(connection)
        try:
            yield connection
        finally:
            site.waiting.discard(connection)
            connection.close()


async def _sent(connection: AsyncConnection, call: Call[Any]) -> list[Any]:
    try:
        return await replies_of(connection, [call])
    except LostError as error:
        raise unavailable(str(error)) from None


async def _send(call: GatewayCall, connection: AsyncConnection, writer: EventWriter) -> None:
    delays, opened, verified = Delays(BACKOFF), connection, monotonic()
    limit = call.query.get("limit", DEFAULT_ENTRIES)
    try:
        while not call.site.closing:
            try:
                if opened.lost is not None:
                    opened = await call.user.open()
                    call.site.waiting.add(opened)
                login: list[Call[Any]] = []
                if monotonic() - verified >= VERIFIED:
                    login, verified = call.user.authentication, monotonic()
                replies = await replies_of(opened, [*login, _read(call, limit, RANGE, round(QUIET * 1000))])
                delays.reset()
            except (LostError, ServerUnavailableError):
                call.site.waiting.discard(opened)
                if not call.site.closing:
                    await writer.write(KEEPALIVE)
                    await asyncio.sleep(delays.next())
                continue
            *_, batch = map(result_of, replies)
            await writer.write(_frames(batch) or KEEPALIVE)
        await writer.end()
    except ProblemError as problem:
        await writer.fail(problem)
    finally:
        call.site.waiting.discard(opened)
        opened.close()


def _frames(batch: Batch) -> bytes:
    return b"".join([frame(item) if isinstance(item, Entry) else event("missing", {}) for item in batch])
