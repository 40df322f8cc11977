"""Requests to members: one connection for each request, and short timeouts."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from tidelog.transport.access import Access
from tidelog.transport.connection import BlockingConnection
from tidelog.transport.errors import ReplyError

ANSWER_MS: Final = 5000  # timeout of connecting and of each reply
READ_LEASES: Final = 1  # leases within which a member has tried to read the coordinator
AGAIN_SECONDS: Final = 0.05
NAME: Final = "tidelog-cluster"  # of the connections


def ask(access: Access, url: str, *words: str | int, ms: int = ANSWER_MS) -> Any:
    """Return the reply of the server at ``url``. Raises OSError, ReplyError."""
    connection = connected(access, url, ms)
    try:
        return connection.ask(*words)
    finally:
        connection.close()


def ask_json(access: Access, url: str, *words: str | int, ms: int = ANSWER_MS) -> dict[str, Any]:
    """Return a reply that is a JSON object. Raises OSError, ReplyError."""
    reply = ask(access, url, *words, ms=ms)
    try:
        found = json.loads(reply)
        if isinstance(found, dict):
            return found
    except (ValueError, TypeError, RecursionError):
        pass
    raise ReplyError(f"{words[0]} was answered with {reply!r:.100}: is it a tidelog-server of a cluster?")


def connected(access: Access, url: str, ms: int = ANSWER_MS) -> BlockingConnection:
    """Return a connection to the server at ``url``. Raises OSError, ReplyError."""
    return BlockingConnection(access.single_attempt(ms), url, NAME)


def member_status(access: Access, url: str) -> dict[str, Any]:
    """Return the status of a member of a group, after it has tried to read the coordinator. Raises OSError, ReplyError.

    The member's ``problem`` says so if the coordinator is unavailable. Without this reading, nobody would notice it
    before a lease expires.
    """
    began = time.monotonic()
    while True:
        waited = int((time.monotonic() - began) * 1000)  # before the request: the reply can be late
        found = ask_json(access, url, "TMEMBER", "STATUS")
        age = found.get("coordinator_read_ms")  # None: of an earlier version
        if age is None or found.get("problem") or 0 <= age < waited:
            return found
        if waited > READ_LEASES * found["lease_ms"]:
            found["problem"] = f"the coordinator {found['coordinator']} does not reply"
            return found
        time.sleep(AGAIN_SECONDS)


async def phase(access: Access, url: str, ms: int) -> str | None:
    """Return the phase of a member of a group, such as ``leading``; None if it sends no reply.

    An error reply counts as a phase: its text.
    """
    try:
        seen = await asyncio.to_thread(ask_json, access, url, "TMEMBER", "STATUS", ms=ms)
    except OSError:
        return None
    except ReplyError as error:
        return str(error)
    return str(seen.get("phase", ""))


def at(url: str, host: str, port: int | str) -> str:
    """Return the URL with another host and port, and the same user and options."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return urlunsplit(parts._replace(netloc=f"{user}@{host}:{port}" if user else f"{host}:{port}"))
