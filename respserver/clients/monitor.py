"""MONITOR: the monitoring clients, and the lines that they receive, in Redis's format."""

from __future__ import annotations

from commands.declare import Command
from commands.session import Session
from respserver.config.directives import DIRECTIVES
from respserver.runtime.clock import Clock
from respserver.runtime.gates import Gates

REDACTED = b"(redacted)"
_NAMED = {0x5C: "\\\\", 0x22: '\\"', 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}
_QUOTED = [_NAMED.get(code) or (chr(code) if 0x20 <= code < 0x7F else f"\\x{code:02x}") for code in range(256)]


def quote(raw: bytes) -> str:
    """Return the bytes in double quotes, with escapes for bytes that are not printable ASCII."""
    return '"' + "".join([_QUOTED[code] for code in raw]) + '"'


def monitor_line(clock_us: int, addr: str, argv: list[bytes]) -> bytes:
    """Return the encoded line for a command: ``+<seconds>.<microseconds> [0 <addr>] "cmd" "arg"...``.

    ``clock_us``: microseconds since epoch. ``argv``: without passwords, see ``redacted``.
    """
    seconds, micros = divmod(clock_us, 1_000_000)
    words = " ".join([quote(arg) for arg in argv])
    return f"+{seconds}.{micros:06d} [0 {addr}] {words}\r\n".encode("utf-8", "surrogateescape")


def redacted(argv: list[bytes], called: str = "") -> list[bytes]:
    """Return the call without passwords and without rules of users, for MONITOR and the slow log.

    ``called``: the declared name of the command, which differs from ``argv[0]`` if the command was renamed. Words that
    may be a misplaced password, as in a call with an unknown option or directive, are removed as well.
    """
    name = called.split("|")[0].upper().encode() if called else argv[0].upper()
    if name[:1] not in b"AHC":  # most commands have no passwords
        return argv
    if name == b"AUTH":
        return hidden(argv, 1)
    if name == b"HELLO":
        return _hello(argv)
    word = argv[1].upper() if len(argv) > 1 else b""
    if name == b"ACL":
        if word == b"DRYRUN":
            return [*argv[:3], *redacted(argv[3:])] if len(argv) > 3 else argv
        return hidden(argv, 2) if word in (b"SETUSER", b"GETUSER", b"DELUSER") else argv
    if name == b"CONFIG" and word == b"SET":
        return _config_set(argv)
    if name == b"COMMAND" and word in (b"GETKEYS", b"GETKEYSANDFLAGS") and len(argv) > 2:
        return [*argv[:2], *redacted(argv[2:])]
    return argv


def hidden(argv: list[bytes], start: int) -> list[bytes]:
    """Hide the words from index ``start`` on."""
    return [*argv[:start], *[REDACTED] * (len(argv) - start)]


def _hello(argv: list[bytes]) -> list[bytes]:
    """Hide, in HELLO [version] [AUTH user password] [SETNAME name], the words after AUTH or from an unknown word on."""
    out = list(argv)
    at = 2 if len(argv) > 1 and argv[1].isdigit() else 1
    while at < len(argv):
        word = argv[at].upper()
        if word == b"AUTH":
            out[at + 1 : at + 3] = [REDACTED] * len(argv[at + 1 : at + 3])
            at += 3
        elif word == b"SETNAME":
            at += 2
        else:
            return hidden(out, at)
    return out


def _config_set(argv: list[bytes]) -> list[bytes]:
    """Hide, in CONFIG SET directive value ..., the values of secret and unknown directives; all if one is missing."""
    if len(argv) & 1:
        return hidden(argv, 3)
    out = list(argv)
    for at in range(2, len(argv), 2):
        directive = DIRECTIVES.get(argv[at].decode("utf-8", "replace").lower())
        if directive is None or directive.secret:
            out[at + 1] = REDACTED
    return out


class Monitors:
    """The monitoring clients, in order of arrival. Implements ``MonitorsPart``."""

    def __init__(self, gates: Gates, clock: Clock) -> None:
        self._gates = gates
        self._clock = clock
        self._sessions: dict[Session, None] = {}

    def add(self, session: Session) -> None:
        session.monitoring = True
        self._sessions[session] = None
        self._gates.monitors(True)

    def remove(self, session: Session) -> None:
        if session.monitoring:
            session.monitoring = False
            self._sessions.pop(session, None)
            self._gates.monitors(bool(self._sessions))

    def show(self, session: Session, command: Command, argv: list[bytes]) -> None:
        """Send an executed command to the monitors. Queued ones are sent when EXEC runs them, admin commands never."""
        if not self._sessions or not command.flags.isdisjoint(("admin", "skip_monitor")):
            return
        line = monitor_line(self._clock.micros(), session.addr, redacted(argv, command.name))
        for monitor in list(self._sessions):
            if monitor.transport is not None:
                monitor.transport.push(line)
