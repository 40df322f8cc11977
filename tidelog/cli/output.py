"""Text for the terminal. Names, errors and manifests can come from a hostile peer, and terminals execute control
characters.

Rule: all output about peers passes through ``safe``. Output of users' code, and of flows, does not.
"""

from __future__ import annotations

from typing import Any, Final

import click

# C0 but tab and line feed, DEL, C1, and the characters that change the direction of text. \u00XX: also JSON's form.
_CONTROLS: Final = {
    code: f"\\u{code:04x}"
    for code in (
        *(code for code in range(0x20) if code not in (0x09, 0x0A)), *range(0x7F, 0xA0),
        *range(0x202A, 0x202F), *range(0x2066, 0x206A),
    )
}  # fmt: skip


def safe(text: str) -> str:
    """Text with its control characters escaped; tabs and line ends stay."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print text, made ``safe``. err: to standard error. nl: with a line end."""
    click.echo(safe(text), err=err, nl=nl)


class Program(click.Group):
    """A group whose error messages are ``safe``."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = safe(error.message)  # Final for those who type it, and the same error otherwise
            raise
