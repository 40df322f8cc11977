"""``tidelog jobs engine``: run jobs on this machine's Spark."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Final

import click

from tidelog.cli.connect import url_option
from tidelog.cli.logs import configure
from tidelog.jobs.engine.engine import Engine, EngineError
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.errors import JobError
from tidelog.jobs.store import StoreError
from tidelog.jobs.store.statedir import expanded
from tidelog.operating.signals import ENDING, handling
from tidelog.transport.access import Access

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


@click.command()
@url_option
@click.option("--master", default="local[*]", show_default=True, help="Spark's: local[*], spark://..., yarn, k8s://...")
@click.option("--state-dir", required=True, metavar="DIR",
              help="Where state is on the machines that run tasks: a local disk, not a shared one. $NAME and ${NAME}"
                   " are environment variables there.")  # fmt: skip
@click.option("--store", default="", metavar="URL",
              help="Object store for snapshots: file://, s3://, gs://, ... Without one there are none, and a state that"
                   " is lost is built anew from all inputs.")  # fmt: skip
@click.option("--name", help="Of this engine, unique. Default: the machine's and the process ID.")
@click.option("--lease", type=click.FloatRange(1.0), default=10.0, show_default=True,
              help="Seconds after which the jobs of an engine that has died are others'.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0.0), default=60.0, show_default=True,
              help="Seconds for which epochs may be finished when the engine is to end.")  # fmt: skip
@click.option("--replicas", type=click.IntRange(0), default=0, show_default=True,
              help="Replicas that must have an epoch, so that it survives a failover.")  # fmt: skip
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark. May be repeated.")
@click.option("--path", multiple=True, type=click.Path(exists=True, file_okay=False),
              help="A folder with modules of jobs, here and where tasks run; default: the current one.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@click.option("--log-json", is_flag=True, help="Log JSON lines.")
def engine(
    url: str, master: str, state_dir: str, store: str, name: str | None, lease: float, grace: float,
    replicas: int, conf: tuple[str, ...], path: tuple[str, ...], log_level: str, log_json: bool,
) -> None:  # fmt: skip
    """Run jobs until SIGTERM, SIGHUP or Ctrl-C. The engine then finishes the running epochs, and other engines take
    over its jobs. After a second signal, it does not wait for the epochs.

    \b
      tidelog jobs engine --state-dir /var/lib/jobs --store s3://bucket/jobs
      tidelog jobs engine --master spark://head:7077 --state-dir /scratch/jobs --conf spark.executor.memory=4g

    An engine is one Spark driver. Any number of engines share the jobs of a server; the partitions of a job run on the
    executors of its engine. --url can name several servers, separated by commas, or Sentinels: the leader is used.
    """
    given = name or f"{socket.gethostname().partition('.')[0]}-{os.getpid()}"
    if not _NAME.fullmatch(given):
        raise click.BadParameter("1 to 100 letters, digits, '_', '-' and '.'", param_hint="--name")
    configure(log_level, log_json)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it tells of each connection
    folders = tuple(map(os.path.abspath, path or (os.getcwd(),)))
    try:
        access = Access.of(url)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    settings = EngineSettings(given, access, master, state_dir, store, folders, _settings(conf), lease, grace, replicas)
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise click.ClickException("no Java here, which Spark needs (Debian: apt-get install openjdk-17-jre-headless)")
    if master == "local" or master.startswith("local["):
        _make(state_dir)
    elif not state_dir.startswith(("/", "$")):
        text = f"{state_dir} would be in a working directory that Spark deletes: give an absolute path, or a variable"
        raise click.BadParameter(text, param_hint="--state-dir")
    if store:
        _check(store)
    try:
        asyncio.run(_run(Engine(settings)))
    except EngineError as error:
        click.ClickException(str(error)).show()
        status = 1
    else:
        status = 0
    sys.stderr.flush()
    os._exit(status)  # a call that is left to itself would keep the process


async def _run(made: Engine) -> None:
    with handling(ENDING, lambda _: made.stop()):
        await made.run()


def _make(state_dir: str) -> None:
    """The folder of states, when tasks run here. ClickException."""
    try:
        Path(expanded(state_dir)).mkdir(parents=True, exist_ok=True)
    except (OSError, StoreError) as error:
        raise click.ClickException(f"--state-dir {state_dir}: {error}") from None


def _check(store: str) -> None:
    """See that the object store can be written. ClickException."""
    from tidelog.jobs.snapshots import check  # here: it loads fsspec

    try:
        check(store)
    except JobError as error:
        raise click.ClickException(f"--store: {error}") from None


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    pairs = [each.partition("=") for each in conf]
    for key, equals, _ in pairs:
        if not key or not equals:
            raise click.BadParameter(f"{key!r} is not KEY=VALUE", param_hint="--conf")
    return {key: value for key, _, value in pairs}
