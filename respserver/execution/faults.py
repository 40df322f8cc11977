"""Replies to commands that have failed: because of the caller, a bug, damaged data, or a lack of memory."""

from __future__ import annotations

from commands.declare import Command, find
from resp import errors, reply
from resp.errors import AbsentNodeError, CommandError, CorruptError, DamagedNodeError
from respserver.runtime.parts import RuntimeParts


class Failures:
    """Counts and logs failed commands; one object per server."""

    def __init__(self, parts: RuntimeParts) -> None:
        self._counters = parts.counters
        self._data = parts.data
        self._logger = parts.logger
        self._exhaustion = parts.exhaustion

    def reply(self, argv: list[bytes], error: Exception, command: Command | None, writes: bool | None = None) -> bytes:
        """Return the reply to a call that has raised ``error``. The log has the details, except of a CommandError.

        ``command``: counts the failure. ``writes``: whether the call may have changed data; None: if its command does.
        A MemoryError of such a call ends the process.
        """
        if command is not None:
            command.failed += 1
        if isinstance(error, CommandError):
            self._counters.note_error(error.text)
            return reply.error(error.text)
        name = errors.show(argv[0])
        if isinstance(error, MemoryError):
            if _writes(argv) if writes is None else writes:
                self._exhaustion.end(f"running {name}")
            return self._exhaustion.reply(argv[0])
        if isinstance(error, AbsentNodeError):
            text = f"TRYAGAIN {self._data.note_damage(error)}"
            self._counters.note_error(text)
            return reply.error(text)
        self._counters.note_error("ERR")
        if isinstance(error, DamagedNodeError):
            text = self._data.note_damage(error)
            self._logger.warning(f"{name} met damaged data: {text}")
            return reply.error(f"ERR damaged data: {text}")
        if isinstance(error, CorruptError):
            self._logger.warning(f"{name} met damaged data: {error}")
            return reply.error(f"ERR damaged data: {error}")
        if isinstance(error, OSError):
            self._logger.warning(f"{name} could not use a file: {error}")
            return reply.error(f"ERR the operating system refused an operation of this command: {error}")
        self._logger.trace(f"Bug while running {name}; the client got an error", error)
        return b"-ERR internal error: the command failed because of a bug in the server, see its log\r\n"


def _writes(argv: list[bytes]) -> bool:
    command = find(argv[:2])
    return command is not None and (command.changes(argv) or "runs_queue" in command.traits)
