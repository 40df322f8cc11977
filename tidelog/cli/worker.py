"""``tidelog worker``: runs the processors of an app."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

import click
import redis
import uvloop

from tidelog.cli.collector import collect_less
from tidelog.cli.logs import configure, logging_options
from tidelog.cli.metrics import metrics_options, serve
from tidelog.cli.modules import Declaration, processors_option
from tidelog.codecs import CodecError
from tidelog.operating.signals import ENDING
from tidelog.operating.terminal import try_echo
from tidelog.topics import TopicError
from tidelog.transport.backoff import Backoff, Delays
from tidelog.transport.errors import message_of
from tidelog.workers import App, AppError
from tidelog.workers.execution.worker import Worker
from tidelog.workers.operate.metrics import serving

BACKOFF: Final = Backoff(first=1.0, most=30.0)  # until a failed process is restarted
LASTING: Final = 5.0  # seconds; a process that fails earlier will fail again
REPORTED: Final = (1, 2)  # exit statuses of errors that the process has reported, including wrong options
TURN: Final = 0.05  # seconds between two checks of the processes
ORPHANED: Final = 1.0  # seconds between two checks whether the parent is alive


@click.command()
@click.argument("path", metavar="APP")
@processors_option
@click.option("--workers", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of processes.")
@metrics_options
@logging_options("info")
@click.option("--child-of", type=int, hidden=True)
@click.pass_context
def worker(
    context: click.Context, path: str, processors: list[str] | None, workers: int, metrics: int | None,
    metrics_host: str, log_level: str, log_json: bool, child_of: int | None,
) -> None:  # fmt: skip
    """Run the processors of APP, the module:name of a Python App object, until SIGTERM, SIGHUP or Ctrl-C. The worker
    then starts no new events and finishes the current ones within the app's grace. A second signal cancels them.

    \b
      tidelog worker shop:app
      tidelog worker shop:app --processors bill,index --workers 4

    Any number of workers on any number of machines share the partitions of the topics. With --workers, the processes
    serve their metrics on consecutive ports.
    """
    app: App = Declaration[App](App, "shop.orders:app").convert(path, context.command.params[0], context)
    try:
        if not app.select(processors) and not app.timers:
            raise click.ClickException(f"app {app.name!r} has nothing to run: no processor, no timer, no cron")
        if workers > 1:
            command = _command(path, processors, log_level, log_json)
            raise SystemExit(_supervise([[*command, *_served(metrics, metrics_host, at)] for at in range(workers)]))
        configure(log_level, log_json)
        collect_less()
        uvloop.run(_run(Worker(app, processors), child_of, metrics, metrics_host))
    except (AppError, TopicError, CodecError) as error:
        raise click.ClickException(str(error)) from None
    except redis.ResponseError as error:
        raise click.ClickException(f"the server replied: {message_of(error)}") from None
    except asyncio.CancelledError:
        raise SystemExit(1) from None


async def _run(running: Worker, parent: int | None, port: int | None, host: str) -> None:
    watching = asyncio.create_task(_watch(running, parent)) if parent is not None else None
    try:
        with ExitStack() as stack:
            if port is not None:
                serve(stack, lambda: serving(running, port, host), port, host)
            await running.run()
    finally:
        if watching is not None:
            watching.cancel()


async def _watch(running: Worker, parent: int) -> None:
    """Stop when the parent process has ended."""
    while os.getppid() == parent:  # noqa: ASYNC110 - there is no notification
        await asyncio.sleep(ORPHANED)
    running.stop()


# -- several processes ---------------------------------------------------------------------------------------
def _command(path: str, processors: list[str] | None, log_level: str, log_json: bool) -> list[str]:
    command = [sys.executable, "-m", "tidelog.cli", "worker", path, f"--log-level={log_level}"]
    command += ["--log-json"] if log_json else []
    return [*command, f"--child-of={os.getpid()}", *([f"--processors={','.join(processors)}"] if processors else [])]


def _served(port: int | None, host: str, number: int) -> list[str]:
    """Return the metrics options of the process with this number."""
    return [] if port is None else [f"--metrics={port + number if port else 0}", f"--metrics-host={host}"]


class _Supervised:
    """A process that is restarted after a failure."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._forwarded = 0  # signals that were forwarded to this process
        self._delays = Delays(BACKOFF)
        self._start_at = -math.inf  # monotonic
        self._started_at = -math.inf
        self.process: subprocess.Popen[bytes] | None = None
        self.status = 0  # exit status of the last process

    def check(self, received: Sequence[signal.Signals]) -> None:
        """Start the process if that is due, and forward new signals."""
        if self.process is not None and (status := self.process.poll()) is not None:
            try_echo(f"worker process {self.process.pid} ended with status {status}", err=True)
            now = time.monotonic()
            if now >= self._started_at + LASTING:
                self._delays.reset()
            self.process, self.status, self._start_at = None, status, now + self._delays.next()
        if self.process is None and not received and time.monotonic() >= self._start_at:
            # In a separate session, so that Ctrl-C in a terminal reaches it only once, through this process.
            self._forwarded, self._started_at = 0, time.monotonic()
            self.process = subprocess.Popen(self._command, start_new_session=True)
        if self.process is not None:
            for number in received[self._forwarded :]:
                self.process.send_signal(number)
            self._forwarded = len(received)

    @property
    def reported(self) -> bool:
        """Whether the process has reported an error that would occur again."""
        return self.process is None and self.status in REPORTED


def _supervise(commands: list[list[str]]) -> int:
    """Keep a process of each command running until a signal; returns the exit status.

    Signal handlers only record signals, and one loop forwards them, so none is lost while a process is started.
    """
    received: list[signal.Signals] = []
    for each in ENDING:
        if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN:
            signal.signal(each, lambda number, _: received.append(signal.Signals(number)))
    children = [_Supervised(command) for command in commands]
    quick = time.monotonic() + LASTING
    while True:
        for child in children:
            child.check(received)
        if not received and time.monotonic() < quick and any(child.reported for child in children):
            received.append(signal.SIGTERM)
        elif received and all(child.process is None for child in children):
            return max(0 if -child.status in received else abs(child.status) for child in children)
        time.sleep(TURN)
