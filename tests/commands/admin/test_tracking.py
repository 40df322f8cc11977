"""CLIENT TRACKING: which prefixes overlap, found in time proportional to their number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commands.admin.tracking import _check_overlaps
from resp import errors
from resp.errors import CommandError

PREFIXES = st.lists(st.text("ab", max_size=4).map(str.encode), max_size=6)


def overlap(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


def compared(prefixes: list[bytes], existing: list[bytes]) -> str:
    """The error where each is compared with each, as Redis does."""
    for at, prefix in enumerate(prefixes):
        for other in existing:
            if overlap(prefix, other):
                return errors.prefix_overlaps(prefix, other, existing=True).text
        for other in prefixes[at + 1 :]:
            if overlap(prefix, other):
                return errors.prefix_overlaps(prefix, other, existing=False).text
    return ""


@given(PREFIXES, PREFIXES)
def test_the_error_names_the_first_pair(prefixes: list[bytes], others: list[bytes]) -> None:
    existing = [each for each in sorted(set(others)) if not any(overlap(each, o) for o in others if o != each)]
    text = ""
    try:
        _check_overlaps(prefixes, existing)
    except CommandError as error:
        text = error.text
    assert text == compared(prefixes, existing)
