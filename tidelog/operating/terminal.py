"""Terminal output without control characters. Names, errors, and manifests can come from a hostile peer.

Rule 1: all output about peers passes through ``safe``. The output of user code and of flows does not.
Rule 2: a program that runs until a signal prints with ``try_echo``. If the reader of its output has ended, or the disk
        is full, the program continues: it would otherwise end with its work unfinished, such as a backup without the
        rest of the log.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any, Final, TextIO

import click

# The JSON escapes of C0 (except tab and line feed), DEL, C1, and characters that change the text direction.
_CONTROLS: Final = {
    code: f"\\u{code:04x}"
    for code in (
        *(code for code in range(0x20) if code not in (0x09, 0x0A)), *range(0x7F, 0xA0),
        *range(0x202A, 0x202F), *range(0x2066, 0x206A),
    )
}  # fmt: skip


def safe(text: str) -> str:
    """Escape control characters except tabs and line ends."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print ``safe`` text, to standard error if ``err`` is set. nl: append a line end."""
    click.echo(safe(text), err=err, nl=nl)


def try_echo(text: str = "", *, err: bool = False) -> None:
    """Print as ``echo``. If that is not possible, the text is lost (Rule 2)."""
    try:
        echo(text, err=err)
    except OSError:
        with suppress(OSError):
            _discard(sys.stderr if err else sys.stdout)


def _discard(stream: TextIO) -> None:
    """Discard what a stream could not write. It would try again at its next use, and at the end of the program, which
    then ends with status 120."""
    descriptor = stream.fileno()
    before, null = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, descriptor)
        stream.flush()
        os.dup2(before, descriptor)
    finally:
        os.close(before)
        os.close(null)


class SafeGroup(click.Group):
    """A group whose error messages are ``safe``."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = safe(error.message)  # it is annotated as Final
            raise
