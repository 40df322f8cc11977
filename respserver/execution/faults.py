"""Replies to commands that failed because of a bug, damaged data, or a lack of memory. The log has the details."""

from __future__ import annotations

from commands.declare import find
from resp import errors, reply
from resp.errors import CorruptError
from respserver.observe.logs import Logger
from respserver.observe.stats import Counters
from respserver.runtime.outofmemory import OutOfMemory


def fault_reply(name: bytes, error: Exception, counters: Counters, logger: Logger) -> bytes:
    """Log an unexpected exception, and return the error reply. ``name``: the command, for the log."""
    counters.note_error("ERR")
    if isinstance(error, CorruptError):
        logger.warning(f"{errors.show(name)} met damaged data: {error}")
        return reply.error(f"ERR damaged data: {error}")
    if isinstance(error, OSError):
        logger.warning(f"{errors.show(name)} could not use a file: {error}")
        return reply.error(f"ERR the operating system refused an operation of this command: {error}")
    logger.trace(f"Bug while running {errors.show(name)}; the client got an error", error)
    return b"-ERR internal error: the command failed because of a bug in the server, see its log\r\n"


def starved_reply(argv: list[bytes], exhaustion: OutOfMemory) -> bytes:
    """Return the reply after a MemoryError in a handler. Ends the process if the command may have changed data."""
    command = find(argv[:2])
    if command is not None and (command.changes(argv) or "runs_queue" in command.traits):
        exhaustion.end(f"running {errors.show(argv[0])}")
    return exhaustion.reply(argv[0])
