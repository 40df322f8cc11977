"""``tidelog worker``: run the processors of an app."""

from __future__ import annotations

import asyncio
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
from tidelog.cli.logs import configure
from tidelog.cli.modules import Declaration
from tidelog.codecs import CodecError
from tidelog.topics import TopicError
from tidelog.workers import App, AppError
from tidelog.workers.metrics import serving
from tidelog.workers.worker import Worker

AGAIN: Final = 1.0  # seconds until a process that has failed is started again
ORPHANED: Final = 1.0  # seconds between two looks whether the parent is still there


@click.command()
@click.argument("app", type=Declaration[App](App, "shop.orders:app"))
@click.option("--processors", metavar="NAME,NAME", help="Only these. Default: all of the app.")
@click.option("--workers", type=click.IntRange(1, 1000), default=1, show_default=True, help="Processes.")
@click.option("--metrics", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve /metrics for Prometheus: each process on a port of its own, from this on.")  # fmt: skip
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address it is served on.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option("--log-json", is_flag=True, help="Log JSON lines, with worker, processor and partition.")
@click.option("--child-of", type=int, hidden=True)
@click.pass_context
def worker(
    context: click.Context, app: App, processors: str | None, workers: int, metrics: int | None, metrics_host: str,
    log_level: str, log_json: bool, child_of: int | None,
) -> None:  # fmt: skip
    """Run the processors of APP: module:name of an App in Python. It runs until SIGTERM or Ctrl-C: then nothing new is
    begun, and what is in work is finished, up to the app's grace. A second one cancels it.

    \b
      tidelog worker shop:app
      tidelog worker shop:app --processors bill,index --workers 4

    Any number of workers on any number of machines share the partitions of the topics.
    """
    names = [name.strip() for name in processors.split(",") if name.strip()] if processors else None
    try:
        if not app.select(names):
            raise click.ClickException(f"app {app.name!r} has no processor to run")
        if workers > 1:
            path = context.args[0] if context.args else _path(sys.argv)
            command = _command(path, processors, log_level, log_json)
            raise SystemExit(_supervise([[*command, *_served(metrics, metrics_host, at)] for at in range(workers)]))
        configure(log_level, log_json)
        collect_less()
        uvloop.run(_run(Worker(app, names), child_of, metrics, metrics_host))
    except (AppError, TopicError, CodecError) as error:
        raise click.ClickException(str(error)) from None
    except redis.ResponseError as error:
        raise click.ClickException(f"the server says: {error}") from None
    except asyncio.CancelledError:
        raise SystemExit(1) from None


async def _run(made: Worker, parent: int | None, port: int | None, host: str) -> None:
    watching = asyncio.create_task(_watch(made, parent)) if parent is not None else None
    try:
        with ExitStack() as stack:
            if port is not None:
                _serve(stack, made, port, host)
            await made.run()
    finally:
        if watching is not None:
            watching.cancel()


def _serve(stack: ExitStack, made: Worker, port: int, host: str) -> None:
    try:
        stack.enter_context(serving(made, port, host))
    except OSError as error:
        raise click.ClickException(f"--metrics {port}: {host}:{port} can't be served: {error}") from None


async def _watch(made: Worker, parent: int) -> None:
    """Stop when the process that started this one is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(ORPHANED)
    made.stop()


# -- several processes ---------------------------------------------------------------------------------------
def _path(arguments: Sequence[str]) -> str:
    """module:app as it was written."""
    return next(each for each in arguments[1:] if ":" in each and not each.startswith("-"))


def _command(path: str, processors: str | None, log_level: str, log_json: bool) -> list[str]:
    command = [sys.executable, "-m", "tidelog.cli", "worker", path, f"--log-level={log_level}"]
    command += ["--log-json"] if log_json else []
    return [*command, f"--child-of={os.getpid()}", *([f"--processors={processors}"] if processors else [])]


def _served(port: int | None, host: str, number: int) -> list[str]:
    """The options for the metrics of the process of this number."""
    return [] if port is None else [f"--metrics={port + number if port else 0}", f"--metrics-host={host}"]


def _supervise(commands: list[list[str]]) -> int:
    """Keep a process of each command running until told to stop; returns the exit status."""
    told = 0

    def stop(number: int, _: object) -> None:
        nonlocal told
        told += 1
        for child in children:
            if child.poll() is None:
                child.send_signal(number)

    # In sessions of their own, so that Ctrl-C in a terminal reaches them once, through this process.
    children = [subprocess.Popen(command, start_new_session=True) for command in commands]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    quick = time.monotonic() + 5 * AGAIN
    while not told:
        for at, child in enumerate(children):
            if child.poll() is not None and not told:
                click.echo(f"worker process {child.pid} ended with status {child.returncode}", err=True)
                if child.returncode == 1 and time.monotonic() < quick:  # it said why, and will again
                    stop(signal.SIGTERM, None)
                    break
                time.sleep(AGAIN)
                children[at] = subprocess.Popen(commands[at], start_new_session=True)
        time.sleep(0.1)
    return max(abs(child.wait()) for child in children)
