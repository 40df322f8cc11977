"""The lines of MONITOR, and passwords, which they never show."""

from __future__ import annotations

import pytest

from respserver.clients.monitor import monitor_line, redacted


def test_monitor_line_of_a_unix_socket_whose_path_is_not_utf8() -> None:
    assert monitor_line(1_000_001, "/\udcff:0", [b"PING"]) == b'+1.000001 [0 /\xff:0] "PING"\r\n'


def test_monitor_line() -> None:
    line = monitor_line(1_700_000_000_000_042, "127.0.0.1:5", [b"set", b'k"\\', b"\r\n\t\a\b\x00\xffz"])
    assert line == rb"""+1700000000.000042 [0 127.0.0.1:5] "set" "k\"\\" "\r\n\t\a\b\x00\xffz""" + b'"\r\n'


@pytest.mark.parametrize(
    ("shown", "argv"),
    [
        ([b"AUTH", b"(redacted)"], [b"AUTH", b"pw"]),
        ([b"auth", b"(redacted)", b"(redacted)"], [b"auth", b"u", b"pw"]),
        ([b"HELLO", b"3"], [b"HELLO", b"3"]),
        (
            [b"hello", b"3", b"auth", b"(redacted)", b"(redacted)", b"SETNAME", b"n"],
            [b"hello", b"3", b"auth", b"u", b"pw", b"SETNAME", b"n"],
        ),
        (
            [b"config", b"SET", b"hz", b"20", b"RequirePass", b"(redacted)"],
            [b"config", b"SET", b"hz", b"20", b"RequirePass", b"pw"],
        ),
        ([b"GET", b"AUTH"], [b"GET", b"AUTH"]),
    ],
)
def test_passwords_are_not_shown(shown: list[bytes], argv: list[bytes]) -> None:
    before = list(argv)
    assert redacted(argv) == shown
    assert argv == before
