"""``tidelog completion``: prints the script with which a shell completes commands, options, and file names."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from tidelog.operating.terminal import echo

PROGRAM: Final = "tidelog"
VARIABLE: Final = "_TIDELOG_COMPLETE"  # click's name; it is set when the shell requests completions


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes tidelog's commands and options in SHELL.

    \b
      bash   add to ~/.bashrc:   eval "$(tidelog completion bash)"
      zsh    add to ~/.zshrc:    eval "$(tidelog completion zsh)"
      fish   tidelog completion fish > ~/.config/fish/completions/tidelog.fish

    bash must be version 4.4 or later. zsh needs compinit, which must run first.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has all three
    echo(kind(context.find_root().command, {}, PROGRAM, VARIABLE).source())
