"""The message for a command whose extra packages are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def needs(command: str, extra: str) -> Iterator[None]:
    """Convert a failed import of a package of ``extra`` to an error message that has the remedy."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "tidelog":
            raise
        raise click.ClickException(f"{command} needs {error.name!r}: pip install 'tidelog[{extra}]'") from None
