"""Whether a user may make a call: the command, then its keys, then its channels, in Redis's order.

The access that a call needs to a key follows from the key's flags, as in Redis: ACCESS reads the contents of the key;
INSERT, UPDATE and DELETE change them. With none of these (EXISTS, WATCH), any matching pattern is sufficient. If a
command has one of these effects only with some options (SET GET reads, TREAD GROUP changes), the call decides. If
Redis's flags do not show that a command returns the contents of a key (XCLAIM), the command has the trait
``reads_keys``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from commands.declare import Command
from commands.users.user import User
from resp import errors
from resp.errors import CommandError
from storage.keyspace.keyspace import Keyspace

COMMAND: Final = "command"
KEY: Final = "key"
CHANNEL: Final = "channel"

_WHY_NOT_ANY_MORE: Final = {
    COMMAND: "no permission to execute the command or subcommand",
    KEY: "no permission to touch the specified keys",
    CHANNEL: "no permission to access one of the channels used as argument to the command",
}


class Denial:
    """The reason why a call is denied."""

    __slots__ = ("command", "reason", "user", "what")

    def __init__(self, reason: str, user: User, command: Command, what: bytes) -> None:
        self.reason = reason  # COMMAND, KEY or CHANNEL
        self.user = user
        self.command = command
        self.what = what  # the name of the command, the key or the channel

    def error(self) -> CommandError:
        if self.reason == COMMAND:
            return errors.command_denied(self.user.name, self.command.called)
        return CommandError(errors.KEY_DENIED if self.reason == KEY else errors.CHANNEL_DENIED)

    def error_in_exec(self) -> CommandError:
        """Return the error for a call that was allowed when it was queued."""
        return errors.denied_since_queued(_WHY_NOT_ANY_MORE[self.reason])

    def dryrun_reply(self) -> bytes:
        """Return the reply of ACL DRYRUN, which names the key or channel."""
        if self.reason == COMMAND:
            return self.error().text.removeprefix("NOPERM ").encode()
        return b"User %b has no permissions to access the '%b' %b" % (self.user.name, self.what, self.reason.encode())


def denied(user: User, command: Command, argv: list[bytes], ks: Keyspace) -> Denial | None:
    """Return why the user may not make this call; None: it is allowed."""
    if user.unrestricted or "no_auth" in command.flags:
        return None
    if command.name not in user.commands:
        return Denial(COMMAND, user, command, command.called.encode())
    if not user.all_keys and (command.key_specs or command.reaches is not None):
        reads = command.reads is None or command.reads(argv)
        changes = command.writes is None or command.writes(argv)
        tells = "reads_keys" in command.traits
        for at, spec in command.keys(argv):
            if not user.may_touch(argv[at], (spec.reads or tells) and reads, spec.writes and changes):
                return Denial(KEY, user, command, argv[at])
        if command.reaches is not None:
            for key in command.reaches(ks, argv):
                if not user.may_touch(key, False, True):
                    return Denial(KEY, user, command, key)
    if not user.all_channels and command.channels:
        for channel in _channels(command, argv):
            if not user.may_subscribe(channel, command.channels == "patterns"):
                return Denial(CHANNEL, user, command, channel)
    return None


def _channels(command: Command, argv: list[bytes]) -> Iterator[bytes]:
    return iter(argv[1:2] if command.channels == "first" else argv[1:])
