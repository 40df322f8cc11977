"""XINFO: entries read and lag where entries are gone, as later versions than 7.0 tell them; long replies.

``test_differential_groups`` has the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.wire.rawclient import Raw

Connect = Callable[..., Raw]


def add(c: Raw, *numbers: int) -> None:
    c.pipeline(*[("XADD", "s", f"{number}-0", "f", "v") for number in numbers])


def read(c: Raw, *options: Any, group: str = "g") -> None:
    c("XREADGROUP", "GROUP", group, "c", *options, "STREAMS", "s", ">")


def counts(c: Raw) -> dict[str, tuple[int | None, int | None]]:
    """Entries read and lag of each group, from XINFO GROUPS; XINFO STREAM FULL must say the same."""
    rows = [dict(zip(row[::2], row[1::2], strict=True)) for row in c("XINFO", "GROUPS", "s")]
    full = c("XINFO", "STREAM", "s", "FULL")
    again = [dict(zip(row[::2], row[1::2], strict=True)) for row in full[full.index(b"groups") + 1]]
    assert [(row[b"entries-read"], row[b"lag"]) for row in rows] == [(r[b"entries-read"], r[b"lag"]) for r in again]
    return {row[b"name"].decode(): (row[b"entries-read"], row[b"lag"]) for row in rows}


def test_deletion_ahead_of_a_group(c: Raw) -> None:
    add(c, 1, 2, 3, 4, 5)
    c("XDEL", "s", "3-0")
    c("XGROUP", "CREATE", "s", "g", 0)
    c("XGROUP", "CREATE", "s", "h", 0)
    assert counts(c) == {"g": (None, None), "h": (None, None)}
    for _ in range(3):
        read(c, "COUNT", 1)
        assert counts(c)["g"] == (None, None)
    read(c, "COUNT", 1)
    assert counts(c)["g"] == (5, 0)
    add(c, 6)
    assert counts(c)["g"] == (5, 1)
    c("XTRIM", "s", "MINID", 3)
    assert counts(c) == {"g": (5, 1), "h": (None, 3)}
    c("XTRIM", "s", "MINID", 5)
    assert counts(c) == {"g": (5, 1), "h": (None, 2)}


def test_deletion_right_behind_a_group(c: Raw) -> None:
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    add(c, 1)
    read(c)
    add(c, 2, 3)
    c("XDEL", "s", "2-0")
    assert counts(c) == {"g": (1, None)}
    c("XDEL", "s", "1-0")
    assert counts(c) == {"g": (1, 1)}
    read(c)
    assert counts(c) == {"g": (3, 0)}


def test_trimming(c: Raw) -> None:
    c("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    assert counts(c) == {"g": (None, 0)}
    add(c, 1, 2, 3, 4, 5)
    read(c, "COUNT", 1)
    assert counts(c) == {"g": (1, 4)}
    c("XTRIM", "s", "MAXLEN", 1)
    assert counts(c) == {"g": (1, 1)}
    read(c)
    assert counts(c) == {"g": (5, 0)}
    add(c, 6)
    assert counts(c) == {"g": (5, 1)}
    c("XTRIM", "s", "MAXLEN", 0)
    assert counts(c) == {"g": (5, 0)}


def test_entries_read_that_are_given_end_at_those_added(c: Raw) -> None:
    add(c, 1)
    c("XGROUP", "CREATE", "s", "g", "$", "ENTRIESREAD", 9999)
    assert counts(c) == {"g": (1, 0)}
    c("XGROUP", "SETID", "s", "g", 0, "ENTRIESREAD", 9999)
    read(c)
    assert counts(c) == {"g": (1, 0)}


def test_setid_changes_what_was_added(c: Raw) -> None:
    add(c, 1, 2)
    c("XGROUP", "CREATE", "s", "g", 0)
    c("XSETID", "s", "9-0", "ENTRIESADDED", 100)
    assert counts(c) == {"g": (None, 2)}
    read(c, "COUNT", 1)
    assert counts(c) == {"g": (99, 1)}
    read(c)
    assert counts(c) == {"g": (100, 0)}


def test_no_group_has_read_more_than_was_added(c: Raw) -> None:
    """XSETID takes what groups have read down with it, so that no lag is negative."""
    add(c, *range(1, 11))
    for group, count in (("g", 10), ("h", 5), ("i", 1)):
        c("XGROUP", "CREATE", "s", group, 0)
        c("XREADGROUP", "GROUP", group, "c", "COUNT", count, "STREAMS", "s", ">")
    c("XGROUP", "CREATE", "s", "j", "5-0")
    assert c("XTRIM", "s", "MAXLEN", 2) == 8
    assert c("XSETID", "s", "10-0", "ENTRIESADDED", 3) == b"OK"
    wanted = {"g": (3, 0), "h": (3, 2), "i": (1, 2), "j": (None, 2)}
    assert counts(c) == wanted
    for save in ("PING", "SAVE"):  # from the log, and from the store
        c(save)
        assert c("DEBUG", "RELOAD") == b"OK"
        assert counts(c) == wanted
    add(c, 11)
    read(c)
    assert counts(c)["g"] == (4, 0)


def test_trimming_with_acked_says_nothing_of_deleted_entries(c: Raw) -> None:
    """Nor does it make a lag unknown. The last ID stays above that of an entry whose node is still there."""
    add(c, *range(1, 7))
    c("XGROUP", "CREATE", "s", "g", 0)
    read(c)
    assert c("XACK", "s", "g", "3-0", "5-0", "6-0") == 3
    assert c("XTRIM", "s", "MAXLEN", 3, "ACKED") == 3
    for _ in range(2):
        info = c("XINFO", "STREAM", "s")
        assert info[info.index(b"max-deleted-entry-id") + 1] == b"0-0"
        assert counts(c) == {"g": (6, 0)}
        assert c("XSETID", "s", "5-0").startswith("ERR The ID specified in XSETID is smaller than")
        assert c("DEBUG", "RELOAD") == b"OK"
    add(c, 7)
    assert counts(c) == {"g": (6, 1)}


def test_setid_changes_the_highest_deleted_id(c: Raw) -> None:
    add(c, 1, 2, 3, 4, 5)
    assert c("XDEL", "s", "3-0") == 1
    assert c("XSETID", "s", "5-0", "MAXDELETEDID", "2-0") == b"OK"
    for _ in range(2):
        info = c("XINFO", "STREAM", "s")
        assert info[info.index(b"max-deleted-entry-id") + 1] == b"2-0"
        assert c("DEBUG", "RELOAD") == b"OK"


@pytest.mark.parametrize("proto", [2, 3])
def test_a_long_reply_is_streamed(connect: Connect, proto: int) -> None:
    c = connect(proto)
    pad = b"x" * 2000
    c.pipeline(*[("XADD", "s", f"{number}-0", "f", pad) for number in range(1, 501)])
    c("XGROUP", "CREATE", "s", "g", 0)
    c("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    full = c("XINFO", "STREAM", "s", "FULL", "COUNT", 0)
    full = full if proto == 3 else dict(zip(full[::2], full[1::2], strict=True))
    ids = [b"%d-0" % number for number in range(1, 501)]
    assert full[b"entries"] == [[entry_id, [b"f", pad]] for entry_id in ids]
    group = full[b"groups"][0]
    group = group if proto == 3 else dict(zip(group[::2], group[1::2], strict=True))
    assert [row[0] for row in group[b"pending"]] == ids
    assert c("PING") == b"PONG"


def test_help(c: Raw) -> None:
    for name in ("XINFO", "XGROUP"):
        lines = c(name, "HELP")
        assert lines[0] == f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:".encode()
        assert b"    Return the subcommands with their summaries." in lines


def test_entries_added_stay_at_the_largest_number(c: Raw) -> None:
    most = (1 << 63) - 1
    add(c, 1)
    c("XSETID", "s", "9-0", "ENTRIESADDED", most)
    c("XGROUP", "CREATE", "s", "g", "0", "ENTRIESREAD", most)
    for number in (10, 11):
        add(c, number)
        read(c)
        for save in ("PING", "SAVE"):
            c(save)
            assert c("DEBUG", "RELOAD") == b"OK"
            info = c("XINFO", "STREAM", "s")
            assert info[info.index(b"entries-added") + 1] == most
            assert counts(c)["g"][0] == most
    c("XSETID", "s", "12-0")
    assert c("DEBUG", "RELOAD") == b"OK"


@pytest.mark.parametrize(("added", "read"), [(2**63 - 1, 2**63 - 1), (3, None)])
def test_entries_read_by_tread_are_a_number_that_can_be(c: Raw, added: int, read: int | None) -> None:
    """XSETID may have said of a stream that it was given more entries than a number holds, or less than it was."""
    add(c, *range(1, 101))
    c("XDEL", "s", *[f"{number}-0" for number in range(2, 101) if number not in (50, 100)])
    c("XGROUP", "CREATE", "s", "g", 0, "ENTRIESREAD", 0)
    c("XGROUP", "CREATECONSUMER", "s", "g", "c")
    c("XSETID", "s", "100-0", "ENTRIESADDED", added)
    if read is not None:
        add(c, 101)
    c("TREAD", "s", 0, 1 if read is None else 9, "GROUP", "g", 0)
    assert c("XINFO", "GROUPS", "s")[0][9] == read
    assert c("SAVE") == b"OK"
    assert c("DEBUG", "RELOAD") == b"OK"
    assert c("XINFO", "GROUPS", "s")[0][9] == read
