"""Extends the lifetime of groups and stages whose calls the server refuses for a reason on its side: too few replicas,
a full disk, no free memory. The clients that send such calls are alive [15], [32].
"""

from __future__ import annotations

from commands.context import Context
from commands.declare import Command
from storage.streams.stream import Stream


def note(ctx: Context, command: Command, argv: list[bytes]) -> None:
    """Extend the time to live of the groups, or of the stage, of a refused call. As for other calls, this is not
    logged.

    The arguments are not checked. An invalid call extends nothing.
    """
    ks = ctx.ks
    if "sign_of_life" not in command.traits or ks.follower:
        return
    served = ctx.served()
    if command.name == "tstage":
        stage = ks.stages.by_name.get(argv[1])
        if stage is not None:
            stage.touch(served)
        return
    for at, _ in command.keys(argv):
        stream = ks.keys.get(argv[at])
        name = _group(command, argv, at)
        group = stream.groups.get(name) if isinstance(stream, Stream) and name is not None else None
        if group is not None:
            group.touch(served)


def _group(command: Command, argv: list[bytes], key: int) -> bytes | None:
    """Return the name of the group. It follows the word GROUP if the command has that word, otherwise the key."""
    at = key + 1
    if command.name in ("tread", "twait", "xreadgroup"):
        first = {"tread": 4, "twait": 2, "xreadgroup": 1}[command.name]
        at = next((at + 1 for at in range(first, len(argv)) if argv[at].upper() == b"GROUP"), len(argv))
    return argv[at] if at < len(argv) else None
