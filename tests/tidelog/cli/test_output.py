"""What peers send reaches a terminal without control characters."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import tidelog.cli
import tidelog.operating
from tidelog.cli.program import main
from tidelog.operating.terminal import SafeGroup, safe


@pytest.mark.parametrize("char", ["\x1b", "\x07", "\r", "\x7f", "\x9b", "\u202e", "\u2066", "\0"])
def test_control_characters_are_escaped(char: str) -> None:
    assert safe(f"a{char}[31mb\n\tc") == f"a\\u{ord(char):04x}[31mb\n\tc"


def test_text_stays_as_it_is() -> None:
    assert safe("naïve 日本 😀 \u00ad") == "naïve 日本 😀 \u00ad"


def test_error_messages_are_safe() -> None:
    @click.group(cls=SafeGroup)
    def program() -> None: ...

    @program.command()
    def fail() -> None:
        raise click.ClickException("\x1b]0;x\x07")

    result = CliRunner().invoke(program, ["fail"])
    assert (result.exit_code, result.output) == (1, "Error: \\u001b]0;x\\u0007\n")


def test_everything_is_printed_safely() -> None:
    folders = [Path(str(package.__file__)).parent for package in (tidelog.cli, tidelog.operating)]
    printing = [path.name for folder in folders for path in folder.glob("*.py") if "click.echo(" in path.read_text()]
    assert printing == ["terminal.py"]


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """A server that sends the same reply to whatever it is asked. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(client: socket.socket) -> None:
            with client:
                try:
                    while data := client.recv(1 << 16):
                        client.sendall(reply * max(1, data.count(b"*")))
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


REPLIES = [
    b"$-1\r\n", b":5\r\n", b"*0\r\n", b"+\x1b[2J\r\n", b"$4\r\n\x1b[2J\r\n", b"*1\r\n*1\r\n:1\r\n", b"-ERR \x1b[2J\r\n",
]  # fmt: skip
COMMANDS: list[list[str]] = [
    ["doctor"], ["info"], ["info", "s"], ["dump", "s"], ["topics", "list"], ["topics", "info", "t"], ["dlq", "list"],
    ["dlq", "list", "t"], ["dlq", "show", "t", "1.0"], ["dlq", "replay", "t", "--all"], ["app", "list"],
    ["jobs", "status"], ["jobs", "list"], ["backup", "target"],
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("reply", REPLIES, ids=repr)
def test_replies_of_another_form_are_errors_in_a_line(
    command: list[str], reply: bytes, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("target"))
    with answering(reply) as url:
        result = CliRunner().invoke(main, command, env={"TIDELOG_URL": url})
    assert isinstance(result.exception, SystemExit) or result.exception is None, result.exc_info
    assert "Traceback" not in result.output
    assert not any(each in result.output for each in "\x1b\x07\x9b")
