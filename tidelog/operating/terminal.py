"""Terminal output without control characters. Names, errors, and manifests can come from a hostile peer.

Rule: all output about peers passes through ``safe``. The output of user code and of flows does not.
"""

from __future__ import annotations

from typing import Any, Final

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


class SafeGroup(click.Group):
    """A group whose error messages are ``safe``."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = safe(error.message)  # it is annotated as Final
            raise
