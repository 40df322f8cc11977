"""The retention of a topic as the policies of its partitions (TCFG RETAIN). The server evicts. Operations without I/O.

    partition_size, max_age     COUNT, AGE
    overflow="protect"          GROUPS: entries that a group has not finished are retained, and all without a group
    always                      EXACT, since a hard limit can be as low as the partition size

Rule 1: the settings are written first, then the policies. The settings are read again after the policies were set. If
        they were changed meanwhile, the policies are set again. The last settings therefore win.
Rule 2: a topic that never had a limit sets nothing. Its partitions can have policies of ``stream-retention``.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import StreamPolicy
from tidelog.client.steps import Steps
from tidelog.coordination import documents
from tidelog.topics.settings import Retention, TopicError, TopicSettings, key_of, read_settings
from tidelog.transport.errors import is_temporary, message_of

log = logging.getLogger(__name__)
PAGE: Final = 500  # partitions per pipeline
_NO_KEY: Final = "no such key"  # the error for a partition that has no policy because it does not exist


def policy_of(kept: Retention) -> StreamPolicy | None:
    """Return the policy of each partition; None if all entries are retained."""
    if not kept.limited:
        return None
    return StreamPolicy(kept.partition_size, kept.max_age_ms, groups=not kept.drops, exact=True)


def policy_words(policy: StreamPolicy | None) -> str:
    """Return a policy as the words of TCFG RETAIN; none if there is no policy."""
    return "none" if policy is None else " ".join(map(str, calls.tcfg_retain("", policy).args[3:]))


def described(kept: Retention) -> str:
    """Return the retention of a topic as a text for users."""
    parts = []
    if kept.partition_size is not None:
        parts.append(f"{kept.partition_size:,} entries per partition")
    if kept.max_age_ms is not None:
        parts.append(f"entries younger than {kept.max_age_ms / 1000:,.0f} s")
    text = " and ".join(parts) or "everything"
    if parts:
        text += "; others are dropped" if kept.drops else "; others are evicted when all groups have finished them"
    return text + (f"; sends are refused at {kept.hard_limit:,} entries" if kept.hard_limit is not None else "")


def change(name: str, kept: Retention) -> Steps[TopicSettings]:
    """Replace the retention of a topic, and set the policies of its partitions. Returns the new settings.

    Raises TopicError if there is no such topic, or as ``enforce`` does.
    """

    def edit(text: bytes | None) -> tuple[bytes, TopicSettings]:
        if text is None:
            raise TopicError(f"there is no topic {name!r}")
        settings = replace(read_settings(name, text), retention=kept)
        return settings.written(), settings

    settings = yield from documents.change(key_of(name), edit)
    yield from enforce(name, settings)
    return settings


def enforce(name: str, settings: TopicSettings) -> Steps[None]:
    """Set the policies of all partitions. Raises TopicError if the server refuses some of them, except temporarily."""
    while True:
        policy = policy_of(settings.retention)
        refused: list[Exception] = []
        text: bytes | None = None
        for start in range(0, settings.partitions or 0, PAGE):
            part = range(start, min(start + PAGE, settings.partitions or 0))
            *replies, read = yield [
                *[calls.tcfg_retain(f"{name}:{at}", policy) for at in part], strings.get(key_of(name)),
            ]  # fmt: skip
            refused += [each for each in replies if _refusal(each, policy)]
            if isinstance(read, Exception):
                raise read
            text = read
        now = settings if text is None else read_settings(name, text)
        if (now.retention, now.partitions) == (settings.retention, settings.partitions):
            break
        settings = now
    if refused and is_temporary(refused[0]):
        raise refused[0]
    if refused:
        raise TopicError(
            f"topic {name!r}: the retention policy of {len(refused)} of {settings.partitions} partitions can't be set:"
            f" {message_of(refused[0])}"
        )


def enforce_changed(name: str, settings: TopicSettings, before: TopicSettings | None) -> Steps[None]:
    """Set the policies if they are not those of the settings ``before``; None: unknown. A refusal is only logged.

    The server refuses them if the user of this program lacks a permission that sending does not need.
    """
    if before is not None and (before.retention, before.partitions, before.id) == (
        settings.retention, settings.partitions, settings.id,
    ):  # fmt: skip
        return
    if not settings.retention.limited and (before is None or not before.retention.limited):
        return
    try:
        yield from enforce(name, settings)
    except TopicError as error:
        log.warning("%s; the server retains these partitions as before. Use tidelog topics alter %s", error, name)


def _refusal(reply: Any, policy: StreamPolicy | None) -> bool:
    return isinstance(reply, Exception) and not (policy is None and _NO_KEY in message_of(reply))
