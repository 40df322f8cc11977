"""TCFG TIER and ``tier-after``: how much history stays local. Numbers are docs/semantics.md's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from respserver.testing import RunningServer
from tests.wire.rawclient import Raw
from tests.wire.test_retention import log_offset
from tidelog.testing import running_server


def setting(c: Raw, key: str = "s") -> Any:
    reply = c("TCFG", key)
    assert reply[2] == b"tier"
    return reply[3]


@pytest.mark.parametrize("words", [b"AGE 3600000", b"BYTES 1000000000", b"AGE 0", b"BYTES 4611686018427387903"])
def test_it_is_shown_and_removed(c: Raw, words: bytes) -> None:
    assert c("TCFG", "s", "tier", *words.lower().split()) == b"OK"
    assert setting(c) == words
    assert words in c("TINFO", "s")
    info = c("XINFO", "STREAM", "s")
    assert info[info.index(b"tier") + 1] == words
    c("RENAME", "s", "t")
    assert setting(c, "t") == words
    assert c("TCFG", "t", "TIER", "default") == b"OK"
    assert setting(c, "t") is None
    assert b"tier" not in c("XINFO", "STREAM", "t")


def test_it_is_independent_of_the_retention_policy(c: Raw) -> None:
    c("TCFG", "s", "RETAIN", "COUNT", 9)
    c("TCFG", "s", "TIER", "AGE", 7)
    assert c("TCFG", "s") == [b"retain", b"COUNT 9 ~", b"tier", b"AGE 7"]
    c("TCFG", "s", "RETAIN", "NONE")
    assert c("TCFG", "s") == [b"retain", None, b"tier", b"AGE 7"]


def test_an_equal_setting_is_not_logged_again(c: Raw) -> None:
    c("TCFG", "s", "TIER", "BYTES", 5)
    before = log_offset(c)
    assert c("TCFG", "s", "TIER", "BYTES", 5) == b"OK"
    assert log_offset(c) == before
    c("TCFG", "s", "TIER", "AGE", 5)
    assert log_offset(c) > before


def test_a_deleted_stream_loses_it(c: Raw) -> None:
    c("TCFG", "s", "TIER", "AGE", 5)
    c("DEL", "s")
    assert c("EXISTS", "s") == 0
    c("TAPPEND", "s", "f", "v")
    assert setting(c) is None


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("TIER", "syntax error"),
        ("TIER AGE", "needs one of AGE, BYTES and DEFAULT"),
        ("TIER AGE 1 BYTES 2", "needs one of"),
        ("TIER COUNT 5", "needs one of"),
        ("TIER DEFAULT 5", "needs one of"),
        ("TIER AGE -1", "AGE must be between 0 and 4611686018427387903"),
        ("TIER BYTES 4611686018427387904", "BYTES must be between 0 and 4611686018427387903"),
        ("TIER BYTES 1gb", "not an integer"),
        ("TIER DEFAULT", "no such key"),
    ],
)
def test_invalid_settings_are_refused(c: Raw, words: str, why: str) -> None:
    reply = c("TCFG", "s", *words.split())
    assert isinstance(reply, str)
    assert why in reply
    assert c("EXISTS", "s") == 0


def test_other_types_are_refused(c: Raw) -> None:
    c("SET", "s", "text")
    assert c("TCFG", "s", "TIER", "AGE", 5).startswith("WRONGTYPE")


@pytest.mark.parametrize("save", [True, False], ids=["from the store", "from the log"])
def test_it_survives_a_restart(tmp_path: Path, save: bool) -> None:
    with running_server(dir=str(tmp_path), save="") as server:
        with Raw(server.port) as c:
            c("TCFG", "s", "TIER", "BYTES", 5)
            c("TCFG", "both", "TIER", "AGE", 6)
            c("TCFG", "both", "RETAIN", "COUNT", 7)
            c("XADD", "both", "*", "f", "v")
            if save:
                c("SAVE")
        server.kill()
        server.start()
        with Raw(server.port) as c:
            assert c("TCFG", "s") == [b"retain", None, b"tier", b"BYTES 5"]
            assert c("TCFG", "both") == [b"retain", b"COUNT 7 ~", b"tier", b"AGE 6"]


@pytest.mark.parametrize("text", ["0", "86400", "2147483647", "1gb", "64MB", "0b", "1000000b"])
def test_the_default_is_an_age_or_a_size(hand: RunningServer, c: Raw, text: str) -> None:
    assert c("CONFIG", "SET", "tier-after", text) == b"OK"
    assert c("CONFIG", "GET", "tier-after") == [b"tier-after", text.lower().encode()]


@pytest.mark.parametrize("text", ["", "-1", "2147483648", "1h", "gb", "-1gb", "1 gb", "9999999999gb", "1_000"])
def test_invalid_defaults_are_refused(c: Raw, text: str) -> None:
    reply = c("CONFIG", "SET", "tier-after", text)
    assert isinstance(reply, str)
    assert "argument must be an age in seconds, 0 to 2147483647, or a size with a unit, as in 3600 or 1gb" in reply
    assert c("CONFIG", "GET", "tier-after") == [b"tier-after", b"86400"]
