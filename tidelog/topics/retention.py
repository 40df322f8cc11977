"""The retention of a topic as the policies of its partitions (TCFG RETAIN). The server evicts. Operations without I/O.

    partition_size, max_age     COUNT, AGE
    overflow="protect"          GROUPS: entries that a group has not finished are retained, and all without a group
    always                      EXACT, since a hard limit can be as low as the partition size
    tier_after                  TCFG TIER, which evicts nothing

Rule 1: the settings are written first, then the policies. The settings are read again after the policies were set. If
        they were changed meanwhile, the policies are set again. The last settings therefore win.
Rule 2: a topic that never had a limit sets no policy. Its partitions can have policies of ``stream-retention``. Without
        ``tier_after``, it does not set TIER.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

from tidelog.client import calls, strings
from tidelog.client.entries import StreamPolicy
from tidelog.client.steps import Steps
from tidelog.coordination import documents
from tidelog.topics.settings import Retention, TopicError, TopicSettings, key_of, read_settings, tier_option
from tidelog.transport.call import Call
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
    if kept.hard_limit is not None:
        text += f"; sends are refused at {kept.hard_limit:,} entries"
    return text + ("" if kept.tier_after is None else f"; local: {tier_option(kept.tier_after)}")


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


def enforce(name: str, settings: TopicSettings, limits: bool = True) -> Steps[None]:
    """Set the policies of all partitions, and how much of them stays local. ``limits``: whether to set the policies.

    Raises TopicError if the server refuses some of them, except temporarily.
    """
    while True:
        policy, tier = policy_of(settings.retention), settings.retention.tier_after
        refused: list[Exception] = []
        text: bytes | None = None
        for start in range(0, settings.partitions or 0, PAGE):
            part = range(start, min(start + PAGE, settings.partitions or 0))
            set_policies = [calls.tcfg_retain(f"{name}:{at}", policy) for at in part] if limits else []
            set_tiers = [_tier(f"{name}:{at}", tier) for at in part] if tier is not None else []
            *replies, read = yield [*set_policies, *set_tiers, strings.get(key_of(name))]
            removes = [*[policy is None] * len(set_policies), *[tier == "DEFAULT"] * len(set_tiers)]
            refused += [each for each, removed in zip(replies, removes, strict=True) if _refusal(each, removed)]
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
            f"topic {name!r}: the retention of {len(refused)} of {settings.partitions} partitions can't be set:"
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
    limits = settings.retention.limited or (before is not None and before.retention.limited)
    if not limits and settings.retention.tier_after is None:
        return
    try:
        yield from enforce(name, settings, limits)
    except TopicError as error:
        log.warning("%s; the server retains these partitions as before. Use tidelog topics alter %s", error, name)


def _tier(key: str, words: str) -> Call[None]:
    kind, _, number = words.partition(" ")
    return calls.tcfg_tier(
        key, ms=int(number) if kind == "AGE" else None, bytes=int(number) if kind == "BYTES" else None
    )


def _refusal(reply: Any, removed: bool) -> bool:
    """Return whether a reply is an error. ``removed``: the call removes a setting, which needs no key."""
    return isinstance(reply, Exception) and not (removed and _NO_KEY in message_of(reply))
