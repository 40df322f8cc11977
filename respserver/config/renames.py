"""``rename-command``: renames commands, or removes them.

Rule 1: only the words of the table and ``Command.called`` change. ``Command.name`` does not, so code for a specific
command does not depend on renames.
Rule 2: the table belongs to the process. A server that changes it restores it when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from commands.declare import TABLE, Command, all_commands
from respserver.config.conffile import ConfigError


def rename(renames: Mapping[str, str]) -> Callable[[], None]:
    """Rename commands in the given order, all or none; ``""`` removes one. Returns a function that reverts it.

    Raises ConfigError for an unknown command and for a new name that is in use.
    """
    before = dict(TABLE)

    def undo() -> None:
        TABLE.clear()
        TABLE.update(before)
        for command in all_commands():
            command.called = command.name

    try:
        for old, new in renames.items():
            _rename(old, new.lower())
    except ConfigError:
        undo()
        raise
    return undo


def _rename(old: str, new: str) -> None:
    command = TABLE.get(old.encode("utf-8", "replace"))
    if command is None:
        raise ConfigError(f"rename-command: No such command in rename-command: '{old}'")
    if not new.isascii():
        raise ConfigError(f"rename-command: the new name of '{old}' must be ASCII")
    if new and TABLE.get(new.encode(), command) is not command:
        raise ConfigError(f"rename-command: Target command name already exists: '{new}'")
    for word in [word for word, entry in TABLE.items() if entry is command]:
        del TABLE[word]
    if new:
        _enter(command, new)


def _enter(command: Command, name: str) -> None:
    TABLE[name.encode()] = TABLE[name.upper().encode()] = command
    command.called = name
    for word, sub in command.subcommands.items():
        sub.called = f"{name}|{word.decode()}"
