"""The replies of HELP subcommands."""

from __future__ import annotations

from commands.declare import help_lines
from resp import reply


def help_reply(container: str) -> bytes:
    """Return a line with the syntax and one with the summary of each subcommand, encoded."""
    return reply.array([reply.simple(line.encode()) for line in help_lines(container)])
