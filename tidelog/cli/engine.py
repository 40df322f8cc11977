"""``tidelog jobs engine``: runs jobs on this machine's Spark."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import re
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from tidelog.cli.connect import url_option
from tidelog.cli.extras import needs
from tidelog.cli.logs import configure, logging_options
from tidelog.cli.metrics import metrics_options, serve
from tidelog.jobs.engine.engine import Engine, EngineError
from tidelog.jobs.engine.metrics import JobMetrics
from tidelog.jobs.engine.session import EngineSettings
from tidelog.jobs.errors import JobError
from tidelog.jobs.store import StoreError
from tidelog.jobs.store.statedir import expanded
from tidelog.operating.metricsserver import serving
from tidelog.operating.signals import ENDING, handling
from tidelog.transport.access import Access

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def check_extra() -> None:
    """Raise ClickException if the packages that jobs use are not installed."""
    with needs("tidelog jobs", "jobs"):
        importlib.import_module("tidelog.jobs.batch")


@click.command()
@url_option
@click.option("--master", default="local[*]", show_default=True, help="Spark's master: local[*], spark://..., yarn, k8s://...")
@click.option("--state-dir", required=True, metavar="DIR",
              help="Directory for states on the machines that run tasks; must be on a local disk. $NAME and ${NAME}"
                   " are environment variables of these machines.")  # fmt: skip
@click.option("--store", default="", metavar="URL",
              help="Object store for snapshots: file://, s3://, gs://, ... Without snapshots, a lost state is"
                   " recomputed from all inputs.")  # fmt: skip
@click.option("--name", help="Unique name of this engine. Default: host name and process ID.")
@click.option("--lease", type=click.FloatRange(1.0), default=10.0, show_default=True,
              help="Seconds until the jobs of a dead engine are reassigned.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0.0), default=60.0, show_default=True,
              help="Seconds within which running epochs may finish when the engine stops.")  # fmt: skip
@click.option("--replicas", type=click.IntRange(0), default=0, show_default=True,
              help="Replicas that must receive each epoch, so that it survives a failover.")  # fmt: skip
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting. May be repeated.")
@click.option("--path", multiple=True, type=click.Path(exists=True, file_okay=False),
              help="A directory with the modules of jobs, here and on the executors. May be repeated. Default: the"
                   " current one.")  # fmt: skip
@metrics_options
@logging_options("info")
def engine(
    url: str, master: str, state_dir: str, store: str, name: str | None, lease: float, grace: float,
    replicas: int, conf: tuple[str, ...], path: tuple[str, ...], metrics: int | None, metrics_host: str, log_level: str,
    log_json: bool,
) -> None:  # fmt: skip
    """Run jobs until SIGTERM, SIGHUP or Ctrl-C. The engine then finishes the running epochs, and other engines take
    over its jobs. After a second signal, it does not wait for the epochs.

    \b
      tidelog jobs engine --state-dir /var/lib/jobs --store s3://bucket/jobs
      tidelog jobs engine --master spark://head:7077 --state-dir /scratch/jobs --conf spark.executor.memory=4g

    An engine is one Spark driver. Any number of engines share the jobs of a server; the partitions of a job run on the
    executors of its engine. --url can name several servers, separated by commas, or Sentinels: the leader is used.
    """
    check_extra()
    engine_name = name or f"{socket.gethostname().partition('.')[0]}-{os.getpid()}"
    if not _NAME.fullmatch(engine_name):
        raise click.BadParameter("must have 1 to 100 letters, digits, '_', '-' and '.'", param_hint="--name")
    configure(log_level, log_json)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each connection
    folders = tuple(map(os.path.abspath, path or (os.getcwd(),)))
    try:
        access = Access.of(url)
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    settings = EngineSettings(
        engine_name, access, master, state_dir, store, folders, _settings(conf), lease, grace, replicas
    )
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise click.ClickException("Spark requires Java (Debian: apt-get install openjdk-17-jre-headless)")
    if master == "local" or master.startswith("local["):
        _make(state_dir)
    elif not state_dir.startswith(("/", "$")):
        text = f"{state_dir} would be in a working directory that Spark deletes: use an absolute path or a variable"
        raise click.BadParameter(text, param_hint="--state-dir")
    if store:
        _check(store)
    try:
        asyncio.run(_run(Engine(settings), metrics, metrics_host))
    except EngineError as error:
        click.ClickException(str(error)).show()
        status = 1
    else:
        status = 0
    sys.stderr.flush()
    os._exit(status)  # an abandoned call would keep the process alive


async def _run(made: Engine, port: int | None, host: str) -> None:
    with ExitStack() as stack:
        stack.enter_context(handling(ENDING, lambda _: made.stop()))
        if port is not None:
            serve(stack, lambda: serving(JobMetrics(made), port, host), port, host)
        await made.run()


def _make(state_dir: str) -> None:
    """Create the directory of states, if tasks run on this machine. Raises ClickException."""
    try:
        Path(expanded(state_dir)).mkdir(parents=True, exist_ok=True)
    except (OSError, StoreError) as error:
        raise click.ClickException(f"--state-dir {state_dir}: {error}") from None


def _check(store: str) -> None:
    """Check that the object store is writable. Raises ClickException."""
    from tidelog.jobs.snapshots import check  # here, since it loads fsspec

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
