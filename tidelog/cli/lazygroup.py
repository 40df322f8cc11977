"""``LazyGroup``: a command group whose module is imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

import click

from tidelog.cli.extras import needs


class LazyGroup(click.Group):
    """The group ``attribute`` of ``module``, which needs the packages of the extra ``extra``.

    The CLI starts faster this way, and commands without extra packages work without them.
    """

    def __init__(self, name: str, module: str, attribute: str, extra: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self._module, self._attribute, self._extra = module, attribute, extra

    def list_commands(self, ctx: click.Context) -> list[str]:
        return self._group(ctx).list_commands(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._group(ctx).get_command(ctx, cmd_name)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self._group(ctx).format_help(ctx, formatter)

    def _group(self, ctx: click.Context) -> click.Group:
        try:
            with needs(f"tidelog {self.name}", self._extra):
                found: Any = importlib.import_module(self._module)
        except click.ClickException:
            if ctx.resilient_parsing:  # a shell requests completions: an error would be printed into the user's line
                return click.Group()
            raise
        group: click.Group = getattr(found, self._attribute)
        return group
