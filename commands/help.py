"""The HELP subcommands. Every container has one."""

from __future__ import annotations

from typing import Final

from commands.context import Context, Reply
from commands.declare import command, help_lines
from resp import reply

# The containers by their groups. DEBUG declares its own HELP, which is refused if the other subcommands are.
_CONTAINERS: Final = {
    "stream": ("TGROUP", "XGROUP", "XINFO"),
    "generic": ("OBJECT",),
    "connection": ("CLIENT",),
    "pubsub": ("PUBSUB",),
    "scripting": ("SCRIPT",),
    "cluster": ("TCLUSTER",),
    "server": ("ACL", "COMMAND", "CONFIG", "LATENCY", "MEMORY", "SLOWLOG", "TMEMBER"),
}


def help_reply(container: str) -> bytes:
    """Return a line with the syntax and one with the summary of each subcommand, encoded."""
    return reply.array([reply.simple(line.encode()) for line in help_lines(container)])


def _declare(container: str, group: str) -> None:
    traits, acl = "unpausable" if container == "CLIENT" else "", "connection" if container == "COMMAND" else ""

    @command(f"{container}|HELP", flags="loading stale", group=group, traits=traits, acl=acl)
    def show_help(ctx: Context, argv: list[bytes]) -> Reply:
        """Return the subcommands with their summaries."""
        return help_reply(container)


for _group, _containers in _CONTAINERS.items():
    for _container in _containers:
        _declare(_container, _group)
