"""Commands that make much more than they send."""

from __future__ import annotations

import pytest

from tests.wire.rawclient import Raw

MB = 1024 * 1024
ROWS = {
    "TMAPPEND": ("TMAPPEND", "s"),
    "TSTAGE": ("TSTAGE", "stage", 0, "s"),
}


@pytest.mark.parametrize("command", ROWS)
def test_fields_that_are_stored_many_times(c: Raw, command: str) -> None:
    """A megabyte of a field and 300 bytes of values would be 300 MB of entries."""
    error = c(*ROWS[command], "FIELDS", 1, b"f" * MB, "VALUES", *["v"] * 300)
    assert error == (
        "ERR the fields are stored with every entry, which would add 313524224 bytes to the size of the command; "
        "'proto-max-command-expansion' allows 67108864. Send fewer values at once, or shorter fields"
    )
    assert c("EXISTS", "s") == c("TDROP", "stage") == 0
    c("MULTI")
    c(*ROWS[command], "FIELDS", 1, b"f" * MB, "VALUES", *["v"] * 300)
    assert [str(reply) for reply in c("EXEC")] == [error]


@pytest.mark.parametrize("command", ROWS)
def test_the_limit_is_a_directive(c: Raw, command: str) -> None:
    assert c("CONFIG", "SET", "proto-max-command-expansion", "1mb") == b"OK"
    long = (*ROWS[command], "FIELDS", 2, b"f" * 9000, b"g" * 1000, "VALUES")
    assert c(*long, *["v"] * 214).startswith("ERR the fields are stored with every entry")  # 106 copies
    assert not isinstance(c(*long, *["v"] * 210), str)  # 104 of them are less than a MiB
    assert c("CONFIG", "SET", "proto-max-command-expansion", "64mb") == b"OK"
    assert not isinstance(c(*long, *["v"] * 214), str)


@pytest.mark.parametrize("command", ROWS)
def test_values_are_not_counted(c: Raw, command: str) -> None:
    """What is sent may be made, whatever it takes."""
    assert c("CONFIG", "SET", "proto-max-command-expansion", "1mb") == b"OK"
    assert not isinstance(c(*ROWS[command], "FIELDS", 1, "f", "VALUES", b"x" * 3 * MB, b"y" * 3 * MB), str)
