"""What HELP subcommands answer."""

from __future__ import annotations

from commands.declare import help_lines
from resp import reply


def help_reply(container: str) -> bytes:
    """Every subcommand's syntax and summary, a line each, encoded."""
    return reply.array([reply.simple(line.encode()) for line in help_lines(container)])
