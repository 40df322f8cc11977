"""MONITOR: the clients that have sent it, and the lines that they get, in Redis's format."""

from __future__ import annotations

from commands.declare import Command
from commands.session import Session
from respserver.clock import Clock
from respserver.gates import Gates

# directives whose values are passwords
_SECRETS = (b"requirepass", b"masterauth", b"tls-key-file-pass", b"tls-client-key-file-pass")
_NAMED = {0x5C: "\\\\", 0x22: '\\"', 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}
_QUOTED = [_NAMED.get(code) or (chr(code) if 0x20 <= code < 0x7F else f"\\x{code:02x}") for code in range(256)]


def quote(raw: bytes) -> str:
    """The bytes in double quotes, with escapes for everything that is not printable ASCII."""
    return '"' + "".join([_QUOTED[code] for code in raw]) + '"'


def monitor_line(clock_us: int, addr: str, argv: list[bytes]) -> bytes:
    """The line for a command, encoded: ``+<seconds>.<microseconds> [0 <addr>] "cmd" "arg"...``.

    ``clock_us``: microseconds since epoch. ``argv``: without passwords, see ``redacted``.
    """
    seconds, micros = divmod(clock_us, 1_000_000)
    words = " ".join([quote(arg) for arg in argv])
    return f"+{seconds}.{micros:06d} [0 {addr}] {words}\r\n".encode("utf-8", "surrogateescape")


def redacted(argv: list[bytes], called: str = "") -> list[bytes]:
    """The command with passwords replaced, for MONITOR and the slow log: AUTH, HELLO AUTH, CONFIG SET of a password;
    and what is said about users.

    ``called``: the name of the command as declared; it differs from ``argv[0]`` if the command was renamed.
    """
    name = called.split("|")[0].upper().encode() if called else argv[0].upper()
    if name[:1] not in b"AHC":  # most commands have no passwords
        return argv
    if name == b"AUTH":
        return [argv[0], *[b"(redacted)"] * (len(argv) - 1)]
    if name == b"ACL" and len(argv) > 2 and argv[1].upper() in (b"SETUSER", b"GETUSER", b"DELUSER"):
        return [*argv[:2], *[b"(redacted)"] * (len(argv) - 2)]
    out = list(argv)
    if name == b"HELLO":
        for at, word in enumerate(argv):
            if word.upper() == b"AUTH":
                out[at + 1 : at + 3] = [b"(redacted)"] * len(argv[at + 1 : at + 3])
                break
    elif name == b"CONFIG" and len(argv) > 3 and argv[1].upper() == b"SET":
        for at in range(2, len(argv) - 1, 2):
            if argv[at].lower() in _SECRETS:
                out[at + 1] = b"(redacted)"
    return out


class Monitors:
    """The clients that have sent MONITOR, in that order. Implements ``MonitorsPart``."""

    def __init__(self, gates: Gates, clock: Clock) -> None:
        self._gates = gates
        self._clock = clock
        self._sessions: dict[Session, None] = {}

    def add(self, session: Session) -> None:
        session.monitoring = True
        self._sessions[session] = None
        self._gates.monitors(True)

    def remove(self, session: Session) -> None:
        """Idempotent."""
        if session.monitoring:
            session.monitoring = False
            self._sessions.pop(session, None)
            self._gates.monitors(bool(self._sessions))

    def show(self, session: Session, command: Command, argv: list[bytes]) -> None:
        """Send a command that ran to the monitors. Queued commands are shown when EXEC runs them, admin ones never."""
        if not self._sessions or not command.flags.isdisjoint(("admin", "skip_monitor")):
            return
        line = monitor_line(self._clock.micros(), session.addr, redacted(argv, command.name))
        for monitor in list(self._sessions):
            if monitor.transport is not None:
                monitor.transport.push(line)
