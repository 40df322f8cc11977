"""``POST`` to a stream: appends entries.

Rule 1: the entries of a request are appended in one step: all of them or none.
Rule 2: with ``Idempotency-Key``, a repeated request appends nothing and gets the same IDs. Each entry is an XADD with
        IDMP: the producer is the key and the number of the entry, so that the setting IDMP-MAXSIZE has no influence.
        The server remembers them for ``stream-idmp-duration``.
Rule 3: a repetition with other entries is an error. The gateway that has served the first request detects it before it
        sends anything (``requestkeys``). Other gateways detect it afterwards by reading the entries of the first
        request, for which the user needs the permission to read the stream.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, Final

from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import Batch, StreamId
from tidelog.gateway.delayed import delays_of
from tidelog.gateway.entryjson import Flat, read_json, read_lines
from tidelog.gateway.errors import ProblemError, problem_of
from tidelog.gateway.limits import BODY
from tidelog.gateway.media import JSON, NDJSON, content_type
from tidelog.gateway.requestkeys import reused
from tidelog.gateway.site import GatewayCall, json_response
from tidelog.gateway.users import result_of
from tidelog.transport.call import Call, plain, queued, read_one

IDEMPOTENCY: Final = "Idempotency-Key"
KEY_LENGTH: Final = 200
REPLAYED: Final = "Idempotency-Replayed"
LARGE: Final = 256 << 10  # bytes of a body that is parsed in a thread: the event loop must not wait for it


async def append(call: GatewayCall) -> web.Response:
    """Append the entries of the body; respond with their IDs."""
    media = content_type(call.request.headers.get("Content-Type", ""), (JSON, NDJSON))
    token = idempotency_key(call.request)
    with ExitStack() as taken:
        body = await call.body(BODY, taken)
        read = read_lines if media == NDJSON else read_json
        entries = read(body) if len(body) < LARGE else await asyncio.to_thread(read, body)
        del body
        if delayed := delays_of(call, entries, token):
            tokens = await in_one_step(call, delayed, repeatable=token is not None)
            call.site.counts.appended += len(tokens)
            return json_response({"tokens": tokens}, 202)
        trims = trims_of(call)
        if token is None:
            ids = await _append(call, entries, trims)
            call.site.counts.appended += len(ids)
            return json_response({"ids": ids}, 201)
        ids, replayed = await _append_once(call, token, entries, trims)
        call.site.counts.appended += 0 if replayed else len(ids)
    return json_response({"ids": ids}, 200 if replayed else 201, {REPLAYED: "true"} if replayed else None)


def idempotency_key(request: web.Request) -> str | None:
    """Return the header ``Idempotency-Key``. Raises ProblemError if it is malformed."""
    key = request.headers.get(IDEMPOTENCY)
    if key is not None and not (0 < len(key) <= KEY_LENGTH and key.isascii() and key.isprintable()):
        text = f"{IDEMPOTENCY} must have 1 to {KEY_LENGTH} printable ASCII characters."
        raise ProblemError(400, "invalid-header", text)
    return key


def trims_of(call: GatewayCall) -> list[Call[Any]]:
    """Return the evictions that the parameters request."""
    names = {"maxcount": "count", "maxage": "ms", "maxbytes": "bytes"}
    return [
        calls.ttrim(call.key, **{names[name]: round(value * 1000) if name == "maxage" else value})
        for name, value in call.query.items()
        if name in names
    ]


async def _append(call: GatewayCall, entries: list[Flat], trims: list[Call[Any]]) -> list[str]:
    """Append entries. Returns their IDs."""
    commands = [plain("TAPPEND", call.key, *flat) for flat in entries]
    replies = await in_one_step(call, [*commands, *trims], repeatable=False)
    return list(map(_id_text, replies[: len(entries)]))


async def _append_once(
    call: GatewayCall, token: str, entries: list[Flat], trims: list[Call[Any]]
) -> tuple[list[str], bool]:
    """Append entries unless an earlier request with this token has. Returns their IDs, and whether it had."""
    before = (await call.user.repeat(calls.tread(call.key, "0", 0, with_info=True)))[0]
    commands = [
        plain("XADD", call.key, "IDMP", f"{token}/{at}", str(at), "*", *flat) for at, flat in enumerate(entries)
    ]  # fmt: skip
    with call.site.request_keys.used(call.user.name, call.key, token, entries):
        replies = await in_one_step(call, [*commands, *trims], repeatable=True)
    ids = [_id_text(each) for each in replies[: len(entries)]]
    if not isinstance(before, Batch) or before.info is None:  # the user may not read
        return ids, False
    known = [at for at, each in enumerate(ids) if StreamId.parse(each) <= before.info.last]
    stored = await call.user.repeat(*[calls.trange(call.key, ids[at], ids[at], 1) for at in known])
    for at, found in zip(known, stored, strict=True):
        if isinstance(found, list) and found and list(found[0].flat) != entries[at]:  # it may have been evicted
            raise reused(token)
    if 0 < len(known) < len(ids):
        text = (
            f"{IDEMPOTENCY} {token!r} was used for a request with {len(known)} entries. The others of this request,"
            f" from {ids[len(known)]} on, were appended. Use a new key for each request."
        )
        raise ProblemError(422, "key-reused", text)
    return ids, len(known) == len(ids)


async def in_one_step(call: GatewayCall, commands: list[Call[Any]], repeatable: bool) -> list[Any]:
    """Send commands in one transaction. Returns their results. Raises ProblemError."""
    send = call.user.repeat if repeatable else call.user.once
    if len(commands) == 1:
        return [result_of((await send(commands[0]))[0])]
    replies = await send(plain("MULTI"), *map(queued, commands), plain("EXEC"))
    for reply in replies[:-1]:  # the error of a command that was not queued has the reason
        if isinstance(reply, Exception):
            raise problem_of(reply)
    found = result_of(replies[-1])
    for reply in found:
        if isinstance(reply, Exception):
            raise problem_of(reply)
    return [read_one(command, reply) for command, reply in zip(commands, found, strict=True)]


def _id_text(raw: Any) -> str:
    return str(StreamId.parse(raw))

