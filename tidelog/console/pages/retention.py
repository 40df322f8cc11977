"""Retention: the policy of a stream (TCFG RETAIN), and the retention of a topic, which sets those of its partitions.

Both also have how much history stays local (TCFG TIER).

Rule 1: a change of a policy has a preview: how many entries would be evicted at once (DRY).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import redis
from aiohttp import web

from tidelog.client import calls
from tidelog.client.entries import StreamPolicy
from tidelog.client.steps import arun
from tidelog.console import topics
from tidelog.console.audit import DONE
from tidelog.console.errors import PageError, UnavailableError, page_error
from tidelog.console.infotext import text
from tidelog.console.keynames import in_url, key_of
from tidelog.console.pages.site import ConsoleSite, refusal, session_of
from tidelog.console.records import TopicDecoder
from tidelog.console.streams import StreamReader
from tidelog.options.units import Duration, Size
from tidelog.topics.retention import change, described, policy_words
from tidelog.topics.retention import policy_of as policy_of_topic
from tidelog.topics.settings import Retention, TopicError, tier_words
from tidelog.transport.asyncconnection import LostError
from tidelog.transport.errors import ReplyError, message_of

TOGETHER: Final = 100  # partitions of a request


def routes(site: ConsoleSite) -> Sequence[web.RouteDef]:
    pages = RetentionPages(site)
    return [
        web.get("/streams/retention", pages.of_stream),
        web.post("/streams/retention/preview", pages.preview),
        web.post("/streams/retention/set", pages.set_policy),
        web.post("/streams/retention/local", pages.set_local),
        web.get("/topics/retention", pages.of_topic),
        web.post("/topics/retention/preview", pages.preview_topic),
        web.post("/topics/retention/set", pages.set_retention),
    ]


class RetentionPages:
    """The handlers."""

    def __init__(self, site: ConsoleSite) -> None:
        self._site = site

    # -- a stream ------------------------------------------------------------------------------------------------
    async def of_stream(self, request: web.Request) -> web.Response:
        key, connection = key_of(request), session_of(request).connection
        reader = await StreamReader.of(connection)
        if not reader.tidelog:
            raise PageError(400, "A redis-server has no retention policies.")
        info = await reader.info(key)
        decoder = await TopicDecoder.of(connection, key)
        return self._site.page(
            request, "retention_stream.html", key=key, info=info, policy=info.retain, policy_text=policy_words,
            topic=decoder.topic if decoder else "", age=_age_words(info.retain.ms) if info.retain else "",
            local=_local_words(info.tier),
        )  # fmt: skip

    async def preview(self, request: web.Request) -> web.Response:
        """Show how many entries the policy of the form evicts at once, with a button that sets it."""
        key, given = key_of(request), await request.post()
        policy = policy_of(given)
        evicted: Any = 0
        if policy is not None:
            (evicted,) = await session_of(request).connection.read(calls.tcfg_retain(key, policy, dry=True))
        if isinstance(evicted, Exception):
            raise page_error(evicted)
        return self._site.part(
            "retention_preview.html", action=f"/streams/retention/set?keyhex={key.hex()}", given=_shown(given),
            text=policy_words(policy), evicted=evicted, streams=1, total=1,
        )  # fmt: skip

    async def set_policy(self, request: web.Request) -> web.Response:
        key, session = key_of(request), session_of(request)
        policy = policy_of(await request.post())
        words = policy_words(policy)
        reply = await self._site.change(
            session, "set retention", text(key), calls.tcfg_retain(key, policy), policy=words
        )  # fmt: skip
        problem = refusal(reply)
        detail = {} if problem else {"evicted": reply}
        self._site.audit.write(
            session.user, session.address, "set retention", text(key), problem or DONE, policy=words, **detail
        )  # fmt: skip
        done = "" if problem else f"The policy is set, and {reply:,} entries were evicted at once."
        return self._site.part("retention_done.html", problem=problem, done=done)

    async def set_local(self, request: web.Request) -> web.Response:
        """Set how much history stays local. Nothing is evicted."""
        key, session = key_of(request), session_of(request)
        words = local_of(await request.post()) or "DEFAULT"
        kind, _, number = words.partition(" ")
        call = calls.tcfg_tier(
            key, ms=int(number) if kind == "AGE" else None, bytes=int(number) if kind == "BYTES" else None
        )  # fmt: skip
        reply = await self._site.change(session, "set local history", text(key), call, local=words)
        problem = refusal(reply)
        self._site.audit.write(
            session.user, session.address, "set local history", text(key), problem or DONE, local=words
        )  # fmt: skip
        return self._site.part("retention_done.html", problem=problem, done="The setting is stored.")

    # -- a topic -------------------------------------------------------------------------------------------------
    async def of_topic(self, request: web.Request) -> web.Response:
        name, connection = request.query.get("name", ""), session_of(request).connection
        settings = await topics.settings_of(connection, name)
        kept = settings.retention
        return self._site.page(
            request, "retention_topic.html", name=name, kept=kept, settings=settings,
            text=described(kept), age=_age_words(kept.max_age_ms), local=_local_words(kept.tier_after),
        )  # fmt: skip

    async def preview_topic(self, request: web.Request) -> web.Response:
        """Show how many records the retention of the form evicts at once, in all partitions."""
        name, given = request.query.get("name", ""), await request.post()
        connection = session_of(request).connection
        settings = await topics.settings_of(connection, name)
        kept = retention_of(given, settings.retention)
        policy = policy_of_topic(kept)
        keys = topics.partitions_of(name, settings)
        evicted = 0
        for start in range(0, len(keys) if policy else 0, TOGETHER):
            part = keys[start : start + TOGETHER]
            for reply in await connection.read(*(calls.tcfg_retain(key, policy, dry=True) for key in part)):
                if isinstance(reply, Exception):
                    raise page_error(reply)
                evicted += reply
        return self._site.part(
            "retention_preview.html", action=f"/topics/retention/set?name={in_url(name)}", given=_shown(given),
            text=described(kept), evicted=evicted, streams=len(keys),
            total=settings.partitions,
        )  # fmt: skip

    async def set_retention(self, request: web.Request) -> web.Response:
        """Change the settings of the topic, and set the policies of all its partitions."""
        name, session = request.query.get("name", ""), session_of(request)
        settings = await topics.settings_of(session.connection, name)
        kept = retention_of(await request.post(), settings.retention)
        words = described(kept)
        connection = await session.connection.open_another()
        problem = "the change failed"
        try:
            await arun(connection, change(name, kept))
            problem = ""
        except LostError as error:
            problem = f"{error}. The change may have been executed."
            raise UnavailableError(problem) from None
        except (redis.ResponseError, ReplyError, TopicError) as error:
            problem = message_of(error)
        finally:
            connection.close()
            self._site.audit.write(
                session.user, session.address, "set retention", f"topic {name}", problem or DONE, retention=words
            )  # fmt: skip
        return self._site.part("retention_done.html", problem=problem, done=f"The topic retains {words}.")


# -- forms ---------------------------------------------------------------------------------------------------------
def policy_of(given: Mapping[str, Any]) -> StreamPolicy | None:
    """Return the policy of a form: ``count``, ``age``, ``size``, ``groups``, ``limit``, ``exact``. None: no limit.

    Raises PageError.
    """
    count, age, size = _number(given, "count"), _age(given, "age"), _size(given, "size")
    groups, limit = "groups" in given, _number(given, "limit")
    if count is None and age is None and size is None:
        if groups or limit is not None:
            raise PageError(400, "Enter a number, an age, or a size: what exceeds it is evicted.")
        return None
    if limit is not None and not groups:
        raise PageError(400, "The limit of protected entries needs “Protect unfinished entries”.")
    return StreamPolicy(count, age, size, groups=groups, limit=limit, exact="exact" in given)


def retention_of(given: Mapping[str, Any], before: Retention) -> Retention:
    """Return the retention of a form: ``count``, ``age``, ``drop``, ``hard_limit``, ``local``. Raises PageError.

    ``before``: the present one. If it has a setting of local history, and the form has none, that is removed.
    """
    local = local_of(given)
    if local is None and before.tier_after is not None:
        local = "DEFAULT" if "local" in given else before.tier_after
    try:
        return Retention(
            _number(given, "count") or None, _age(given, "age") or None, "drop" if "drop" in given else "protect",
            _number(given, "hard_limit") or None, local,
        )  # fmt: skip
    except TopicError as error:
        raise PageError(400, str(error)) from None


def local_of(given: Mapping[str, Any]) -> str | None:
    """Return ``local`` of a form, an age or a size, as the words of TCFG TIER; None if empty. Raises PageError."""
    words = str(given.get("local", "")).strip()
    try:
        return tier_words("Local history", words) if words else None
    except TopicError as error:
        raise PageError(400, str(error)) from None


def _local_words(words: str | None) -> str:
    """Return the words of TCFG TIER as ``local_of`` reads them."""
    kind, _, number = (words or "DEFAULT").partition(" ")
    return {"AGE": lambda: _age_words(int(number)), "BYTES": lambda: f"{number}b"}.get(kind, str)()


def _number(given: Mapping[str, Any], name: str) -> int | None:
    words = str(given.get(name, "")).strip().replace(",", "")
    if not words:
        return None
    if not words.isascii() or not words.isdecimal() or len(words) > 18:
        raise PageError(400, f"{words[:40]!r} is not a whole number.")
    return int(words)


def _age(given: Mapping[str, Any], name: str) -> int | None:
    words = str(given.get(name, "")).strip()
    if not words:
        return None
    try:
        return round(1000 * Duration.read(f"{words}s" if words.isascii() and words.isdecimal() else words))
    except ValueError as error:
        raise PageError(400, f"{error}, 12h, or 7d") from None


def _size(given: Mapping[str, Any], name: str) -> int | None:
    words = str(given.get(name, "")).strip()
    if not words:
        return None
    try:
        return int(Size.read(words))
    except ValueError as error:
        raise PageError(400, str(error)) from None


def _age_words(ms: int | None) -> str:
    """Return an age as ``_age`` reads it."""
    if ms is None:
        return ""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if ms and ms % length == 0:
            return f"{ms // length}{unit}"
    return f"{ms}ms"


def _shown(given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of a form for the one that executes it."""
    return [(name, str(value)) for name, value in given.items() if name != "csrf"]
