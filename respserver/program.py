"""The ``tidelog-server`` program: command line, start, signals and exit codes.

A start logs these lines, in the order that tools for redis-server expect::

    ... * tidelog 0.1.0 is starting, 64 bit, port 6379, PID: 4711
    ... * Server initialized                     (modules loaded; then the data is recovered)
    ... * Ready to accept connections            (listening; the PID file exists)

Rule 1: if the server can't start, one line reports the reason, and the exit code is 1. A traceback means a bug.
Rule 2: modules are imported on demand, so that a server with an empty directory starts as fast as Python loads asyncio
and uvloop. Therefore click, which takes 30 ms, does not parse the arguments. It also does not support redis-server's
syntax, ``--name value value`` with the names of the directives.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from respserver import __version__
from respserver.config.conffile import ConfigError
from respserver.config.config import Config
from respserver.observe.logs import Logger, take_over_logging

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from respserver.server import RespServer

# Objects that survived two collections are never examined again: a full collection takes 150 ms with 100,000 streams,
# and the server creates no reference cycles.
GENERATIONS = 700, 10, 1 << 30
SPARE_FILES = 64  # open files that are not clients: listeners, data files, the event loop

HELP = """\
tidelog-server: a durable log server that speaks the Redis protocol.

Usage: tidelog-server [conf-file] [--name value ...] [-]
       tidelog-server -v | --version
       tidelog-server -h | --help [name]        show this text, or explain the directive with this name
       tidelog-server [...] --test-config       check the configuration without starting the server
       tidelog-server [...] --restore           create the data directory from a full copy on standard input;
                                                "tidelog restore" writes such a copy from a backup
       tidelog-server [...] --verify            verify the data directory of a stopped server; "tidelog verify"
                                                shows the result

Every directive of the configuration file is also a flag. Flags override the file. "-" reads directives from standard
input. Without arguments, the server listens on 127.0.0.1 and ::1, port 6379, and stores its data in ./data.

Examples:
  tidelog-server                                        start with the defaults
  tidelog-server --port 7777 --dir /var/lib/tidelog     use another port and another data directory
  tidelog-server /etc/tidelog.conf --loglevel verbose   read a file, and override one directive
  tidelog-server --appendfsync everysec --save ""       sync once a second, no save points
  tidelog-server --bind '*' --requirepass secret        accept other machines, with a password
  tidelog-server --group tide --coordinator file:///var/lib/tide   start a member of a server group
  tidelog-server --port 0 --tls-port 6379 --tls-cert-file server.crt --tls-key-file server.key --tls-auth-clients no
  echo 'maxmemory 512mb' | tidelog-server -             read directives from standard input
  tidelog-server --help appendfsync                     explain a directive

Then, from another terminal:
  redis-cli TAPPEND weather city Oslo temp 4            append an entry; the reply is its ID
  redis-cli TRANGE weather - +                          read all entries
  redis-cli TREAD weather '' 10 BLOCK 0                 wait for new entries
"""


def main(argv: list[str] | None = None) -> int:
    """Run ``tidelog-server``; return the exit code."""
    args = sys.argv[1:] if argv is None else argv
    if args and args[0] in ("-v", "--version"):
        from respserver.observe.info import COMPILED, RESP_PARSER
        from storage.nodes import coder

        sys.stdout.write(
            f"tidelog-server v={__version__} bits={_bits()} python={sys.version.split()[0]} compiled={int(COMPILED)}"
            f" resp_parser={RESP_PARSER} coded_nodes={int(coder.CODES)}\n"
        )
        return 0
    if args and args[0] in ("-h", "--help"):
        return _help(args[1:])
    ways = {"--test-config": _test, "--restore": _restore, "--verify": _verify}  # actions that replace serving
    try:
        config = Config.load([word for word in args if word not in ways], _read_stdin)
        return next((do for word, do in ways.items() if word in args), run)(config)
    except ConfigError as exc:
        sys.stderr.write(exc.report(__version__))
        return 1


def run(config: Config) -> int:
    """Serve until stopped; return the exit code."""
    gc.disable()  # until the server is ready, because the objects created at startup remain in use
    logger = Logger(config.logfile, config.loglevel)
    try:
        logger.check()
    except OSError as exc:
        return _fail(Logger(), f"logfile: can't open {config.logfile}: {exc.strerror}")
    where = ", ".join(_listens(config))
    logger.notice(f"tidelog {__version__} is starting, {_bits()} bit, {where or 'no port'}, PID: {os.getpid()}")
    config.warn = logger.warning
    for warning in config.warnings:
        logger.warning(warning)
    if not where:
        return _fail(logger, "Configured to not listen anywhere, exiting: set port, tls-port or unixsocket")
    try:
        os.makedirs(config.dir, 0o700, exist_ok=True)
        os.listdir(config.dir)
    except OSError as exc:
        return _fail(logger, f"dir: can't use the data directory {config.dir}: {exc.strerror}")
    fit_maxclients(config, logger)
    watch_config(config, logger)
    _exit_while_starting(logger)
    gc.set_threshold(*GENERATIONS)
    try:
        loop = new_loop(logger)
        take_over_logging(logger)
        try:
            return loop.run_until_complete(_serve(config, logger))
        finally:
            loop.close()
    except KeyboardInterrupt:  # before the server is ready; afterwards, SIGINT has its own handler
        return _fail(logger, "Interrupted")


async def _serve(config: Config, logger: Logger) -> int:
    import asyncio

    from resp.errors import CommandError, CorruptError
    from respserver.runtime.stopping import StopWatch
    from respserver.server import RespServer
    from respserver.supervision import Supervision

    warn_if_uncompiled(logger)
    logger.notice("Server initialized")
    try:
        server = RespServer(config, logger)
        await server.start()
    except (CorruptError, ConfigError, CommandError) as exc:
        return _fail(logger, str(exc))
    except OSError as exc:
        return _fail(logger, _explain(exc, config))
    except MemoryError:
        return _fail(logger, "Can't start: not enough memory for the data; is 'ulimit -v' set?")
    except Exception as exc:  # noqa: BLE001 - a bug must be logged, not only shown on the terminal
        logger.trace("Can't start: this is a bug", exc)
        return 1
    _write_pidfile(config, logger)
    supervision = Supervision(config, logger)
    server.call_when_stopping(supervision.stopping)
    _stop_on_signals(server, config, logger)
    server.exhaustion.on_end = lambda: _remove_pidfile(config)
    watch = StopWatch(logger, lambda: server.data.disk.sync(), server.exhaustion.give_up)
    server.on_stage = watch.stage
    asyncio.get_running_loop().set_exception_handler(server.exhaustion.in_loop)
    gc.freeze()  # otherwise, the first collection examines all loaded objects: half a second with 100,000 streams
    gc.enable()
    supervision.ready()
    logger.notice("Ready to accept connections")
    try:
        await server.run_until_stopped()
    except MemoryError:
        server.exhaustion.end("stopping")
    except Exception as exc:  # noqa: BLE001 - as above
        logger.trace("The server failed: this is a bug", exc)
        return 1
    finally:
        _remove_pidfile(config)
    logger.notice("tidelog is now ready to exit, bye bye...")
    watch.stage("the end of its threads", 0)
    return 0


def warn_if_uncompiled(logger: Logger) -> None:
    """Log a warning if the C extension that encodes nodes was not compiled."""
    from storage.nodes import coder

    if not coder.CODES:
        logger.warning(
            "tidelog was installed without a C compiler: streams of numbers and of repeated texts take about twice the "
            "space on disk, and streams that a compiled server has stored are read slowly"
        )


def fit_maxclients(config: Config, logger: Logger) -> None:
    """Raise the limit of open files. Lower ``maxclients`` if the system does not allow enough of them."""
    granted = _clients_granted(config.maxclients)
    if granted < config.maxclients:
        config.maxclients = granted
        logger.warning(
            f"maxclients has been reduced to {granted}: the system allows {granted + SPARE_FILES} open files "
            "(increase 'ulimit -n' to allow more)"
        )


def _clients_granted(wanted: int) -> int:
    """Raise the limit of open files; return the number of clients, at most ``wanted``, that it allows."""
    import resource

    need = wanted + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= need:
        return wanted
    granted = need if hard == resource.RLIM_INFINITY else min(need, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    except (OSError, ValueError):
        granted = soft
    return max(1, granted - SPARE_FILES)


def watch_config(config: Config, logger: Logger) -> None:
    """Apply CONFIG SET of the directives of the process; RespServer applies the others."""

    def loglevel() -> None:
        logger.set_level(config.loglevel)

    def maxclients() -> None:
        granted = _clients_granted(config.maxclients)
        if granted < config.maxclients:  # the text is Redis's
            raise ValueError(
                f"The operating system is not able to handle the specified number of clients, try with {granted}"
            )

    config.on_change["loglevel"] = loglevel
    config.on_change["maxclients"] = maxclients


# -- the loop and its signals ------------------------------------------------------------------------------------


def new_loop(logger: Logger) -> AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        import asyncio

        logger.warning("uvloop is not installed: using asyncio's own event loop, which is slower")
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _exit_while_starting(logger: Logger) -> None:
    """Make SIGTERM and SIGINT exit immediately until the server is ready. Recovery can be interrupted at any point.

    SIGHUP is ignored from now on, as in Redis: the server outlives the terminal from which it was started.
    """

    def leave(number: int, _frame: object) -> None:
        logger.warning(f"Received {signal.Signals(number).name} while starting, exiting...")
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _stop_on_signals(server: RespServer, config: Config, logger: Logger) -> None:
    import asyncio

    stopping = False

    def received(number: signal.Signals) -> None:
        nonlocal stopping
        if stopping and number == signal.SIGINT:
            logger.warning("You insist... exiting now.")
            _remove_pidfile(config)
            os._exit(1)
        if stopping:
            return
        stopping = True
        logger.warning(f"Received {number.name} scheduling shutdown...")
        modes = config.shutdown_on_sigint if number == signal.SIGINT else config.shutdown_on_sigterm
        server.stop("nosave" not in modes, "now" in modes)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)


# -- pid file ----------------------------------------------------------------------------------------------------


def _write_pidfile(config: Config, logger: Logger) -> None:
    """Write the PID file. The data directory is already locked, so a second server can't replace the file."""
    if not config.pidfile:
        return
    try:
        with open(config.pidfile, "w", encoding="ascii") as file:
            file.write(f"{os.getpid()}\n")
    except OSError as exc:  # as in redis-server, this does not stop the server
        logger.warning(f"Failed to write PID file {config.pidfile}: {exc.strerror}")


def _remove_pidfile(config: Config) -> None:
    """Remove the PID file, unless another process has replaced it."""
    if not config.pidfile:
        return
    with suppress(OSError):
        with open(config.pidfile, encoding="ascii", errors="replace") as file:
            ours = file.read().strip() == str(os.getpid())
        if ours:
            os.unlink(config.pidfile)


# -- messages ----------------------------------------------------------------------------------------------------


def _fail(logger: Logger, text: str) -> int:
    """Log why the server did not start; return the exit code."""
    logger.warning(text)
    if logger.path:  # also on the terminal
        sys.stderr.write(f"tidelog-server: {text}\n")
    return 1


def _explain(exc: OSError, config: Config) -> str:
    """Return the line for an OSError at startup, with a hint."""
    import errno

    text = exc.strerror or str(exc)
    if exc.filename:
        text = f"{exc.filename}: {text}"
    cause = exc.__cause__ if isinstance(exc.__cause__, OSError) else exc  # the text of Listeners names the address
    hints = {
        errno.EADDRINUSE: "is another server running there?",
        errno.EADDRNOTAVAIL: "bind names an address that this machine does not have",
        errno.EACCES: "is a port below 1024 allowed for this user, and the directory writable?",
    }
    hint = hints.get(cause.errno or 0)
    if hint is None:
        return f"Can't start: {text}"
    if cause.errno != errno.EACCES and cause is exc:
        text = f"Failed listening on {', '.join(_listens(config))}: {text}"
    return f"{text}; {hint}"


def _listens(config: Config) -> list[str]:
    found = []
    if config.port and config.bind:
        found.append(f"port {config.port}")
    if config.tls_port and config.bind:
        found.append(f"TLS port {config.tls_port}")
    if config.unixsocket:
        found.append(f"unix socket {config.unixsocket}")
    return found


def _help(names: list[str]) -> int:
    if not names:
        sys.stdout.write(HELP)
        return 0
    from respserver.config.conffile import nearest
    from respserver.config.directives import ALIASES, DIRECTIVES
    from respserver.config.ignored import IGNORED, reason_ignored

    given = names[0].removeprefix("--").lower()
    directive = DIRECTIVES.get(ALIASES.get(given, given))
    if directive is not None:
        changes = "CONFIG SET changes it" if directive.mutable else "can be set at startup only"
        lines = [directive.name, f"  {directive.doc}", f"  Takes {directive.takes()}.".replace("`", "")]
        lines.append(f"  Default: {directive.default or 'empty'}; {changes}.")
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    reason = reason_ignored(given)
    if reason is not None:
        sys.stdout.write(f"{given}\n  A directive of Redis that has no effect in tidelog: {reason}.\n")
        return 0
    near = nearest(given, [*DIRECTIVES, *IGNORED])
    sys.stderr.write(f"tidelog-server: unknown directive '{given}'" + (f"; did you mean '{near}'?\n" if near else "\n"))
    return 1


def _test(config: Config) -> int:
    """Check what serving would read. Raises ConfigError."""
    if config.tls_port:
        from respserver.clients.tls import build_context

        build_context(config)
    warnings = config.warnings
    if config.aclfile or config.user:
        from respserver.config import aclfile

        warnings = [*warnings, *aclfile.warnings(aclfile.configured(config).values())]
    for warning in warnings:
        sys.stdout.write(f"warning: {warning}\n")
    sys.stdout.write(f"Configuration OK: {', '.join(_listens(config)) or 'not listening'}, data in {config.dir}\n")
    return 0


def _restore(config: Config) -> int:
    """Create the data directory from standard input; print a summary of its contents as JSON."""
    import json

    from replication.frames import LinkError
    from resp.errors import CorruptError
    from respserver.restore import restore

    try:
        summary = restore(sys.stdin.buffer, config)
    except (LinkError, CorruptError) as exc:
        sys.stderr.write(f"tidelog-server: {exc}\n")
        return 1
    except OSError as exc:
        sys.stderr.write(f"tidelog-server: {f'{exc.filename}: ' if exc.filename else ''}{exc.strerror or exc}\n")
        return 1
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def _verify(config: Config) -> int:
    """Verify the data directory of a stopped server. Print the progress and a report as lines of JSON."""
    import json

    from persistence.verification import verify
    from resp.errors import CorruptError

    def show(done: int, total: int) -> None:
        sys.stdout.write(json.dumps({"done": done, "total": total}) + "\n")
        sys.stdout.flush()

    try:
        report = verify(Path(config.dir), show)
    except CorruptError as exc:
        sys.stderr.write(f"tidelog-server: {exc}\n")
        return 2
    except OSError as exc:
        sys.stderr.write(f"tidelog-server: {f'{exc.filename}: ' if exc.filename else ''}{exc.strerror or exc}\n")
        return 2
    sys.stdout.write(json.dumps(report.fields()) + "\n")
    return 1 if report.problems else 0


def _read_stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8", "surrogateescape")


def _bits() -> int:
    return 64 if sys.maxsize > 2**32 else 32


if __name__ == "__main__":
    sys.exit(main())
