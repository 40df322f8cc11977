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
        *[(shown.encode().split(), argv.encode().split()) for argv, shown in {
            "CONFIG SET masteruser pw": "CONFIG SET masteruser (redacted)",
            "CONFIG SET masterauth pw hz 9 tls-key-file-pass pw": (
                "CONFIG SET masterauth (redacted) hz 9 tls-key-file-pass (redacted)"
            ),
            "CONFIG SET tls-client-key-file-pass pw": "CONFIG SET tls-client-key-file-pass (redacted)",
            "CONFIG SET user app>pw": "CONFIG SET user (redacted)",
            "CONFIG SET requirepas pw port 1": "CONFIG SET requirepas (redacted) port 1",
            "CONFIG SET hz 9 requirepass": "CONFIG SET hz (redacted) (redacted)",
            "CONFIG SET hz masterauth pw": "CONFIG SET hz (redacted) (redacted)",
            "CONFIG GET masterauth": "CONFIG GET masterauth",
            "AUTH u pw more": "AUTH (redacted) (redacted) (redacted)",
            "HELLO AUTH u pw": "HELLO AUTH (redacted) (redacted)",
            "HELLO 3 AUTH u": "HELLO 3 AUTH (redacted)",
            "HELLO 3 SETNAME AUTH AUTH u pw": "HELLO 3 SETNAME AUTH AUTH (redacted) (redacted)",
            "HELLO 3 u pw": "HELLO 3 (redacted) (redacted)",
            "HELLO 3 AUTH u pw pw": "HELLO 3 AUTH (redacted) (redacted) (redacted)",
            "ACL SETUSER u >pw": "ACL SETUSER (redacted) (redacted)",
            "ACL DRYRUN u AUTH pw": "ACL DRYRUN u AUTH (redacted)",
            "ACL DRYRUN u GET k": "ACL DRYRUN u GET k",
            "ACL DRYRUN u": "ACL DRYRUN u",
            "COMMAND GETKEYS AUTH pw": "COMMAND GETKEYS AUTH (redacted)",
            "COMMAND GETKEYSANDFLAGS HELLO 3 AUTH u pw": "COMMAND GETKEYSANDFLAGS HELLO 3 AUTH (redacted) (redacted)",
            "COMMAND": "COMMAND",
        }.items()],
    ],
)  # fmt: skip
def test_passwords_are_not_shown(shown: list[bytes], argv: list[bytes]) -> None:
    before = list(argv)
    assert redacted(argv) == shown
    assert argv == before
